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
        "colour": {"type": "string", "pattern": "^#([0-9a-f]{2}){3}$"},
        "code": {"type": "string", "pattern": "^([A-Z]{3}|[^a-z0-9]{2,}-x?)+ .*$"},
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
        ({"type": "string", "pattern": "^\\d$"}, "s.pattern"),
        ({"type": "string", "pattern": "^(?=a)b$"}, "s.pattern"),
        ({"type": "string", "pattern": "^a{99999999999}$"}, "s.pattern"),
        ({"type": "string", "pattern": "^" + "(" * 3000 + "a" + ")" * 3000 + "$"}, "s.pattern"),
        ({"type": "string", "pattern": "^a{3,2}$"}, "s.pattern"),
        ({"type": "string", "pattern": "^[z-a]$"}, "s.pattern"),
        ({"type": "string", "pattern": "^(a$"}, "s.pattern"),
        ({"type": "string", "pattern": "^*a$"}, "s.pattern"),
        ({"type": "string", "pattern": "^(a?){17}$"}, "s.pattern"),
        ({"type": "string", "pattern": "^((a?){5}){0,4}$"}, "s.pattern"),
        ({"type": "string", "format": "email"}, "s.format"),
        ({"type": "string", "minLength": 9, "maxLength": 1}, "s.maxLength"),
        ({"type": "array", "minItems": 2, "maxItems": 1}, "s.maxItems"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "s.maximum"),
        ({"type": "integer", "minimum": 0.5}, "s.minimum"),
        ({"type": "integer", "minimum": -(10**300)}, "s.minimum"),
        ({"type": "colour"}, "s.type"),
        ({"type": []}, "s.type"),
        ({"enum": []}, "s.enum"),
        ({"format": []}, "s.format"),
        ({"properties": {}, "required": [{}]}, "s.required"),
        ({"$ref": "#"}, "s.$ref"),
        ({"$ref": "https://example.com/a"}, "s.$ref"),
        ({"properties": {"a": True}}, "s.properties.a"),
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
