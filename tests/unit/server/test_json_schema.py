"""JSON Schemas that answers can be held to: every keyword counts, or is refused with its place."""

import pytest

from antiphon.errors import InvalidRequestError
from antiphon.server.json_schema import check_schema

PERSON = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "A person",
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "code": {"type": "string", "pattern": "^[A-Z]{3}$"},
        "born": {"type": "string", "format": "date"},
        "kind": {"anyOf": [{"const": "x"}, {"type": "null"}, {"$ref": "#/$defs/kind"}]},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "$defs": {"kind": {"type": ["string", "integer"]}},
}


def test_a_usual_schema_is_taken() -> None:
    check_schema(PERSON, "schema")


def nested(depth: int) -> dict[str, object]:
    return {"items": nested(depth - 1)} if depth else {}


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        ({"properties": {"a": {"not": {}}}}, "s.properties.a.not"),
        ({"anyOf": [{}, {"uniqueItems": True}]}, "s.anyOf[1].uniqueItems"),
        ({"items": {"multipleOf": 3}}, "s.items.multipleOf"),
        ({"patternProperties": {}}, "s.patternProperties"),
        ({"type": "number", "minimum": 3}, "s.minimum"),
        ({"type": "string", "pattern": "[0-9]"}, "s.pattern"),
        ({"type": "string", "format": "email"}, "s.format"),
        ({"type": "string", "maxLength": 5000}, "s.maxLength"),
        ({"type": "object", "required": ["a"]}, "s.required"),
        ({"anyOf": []}, "s.anyOf"),
        ({"properties": []}, "s.properties"),
        ({"items": 5}, "s.items"),
        (nested(40), "s" + ".items" * 33),
    ],
)
def test_a_keyword_that_would_be_dropped_is_refused_with_its_place(schema: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_schema(schema, "s")
    assert caught.value.param == param
