"""Which JSON Schemas an answer can be held to: those of which every keyword becomes part of the grammar.

In: a schema as a client sends it. Out: nothing, or an InvalidRequestError naming the keyword and its place.
Does not know: grammars, engines. A keyword that would be dropped is refused: the answer might not fit the schema.
"""

from collections.abc import Iterator

from antiphon.errors import InvalidRequestError

_NOTES = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
    | {"$schema", "$id", "$comment", "$anchor", "strict"}
)
_MAPS = frozenset({"properties", "$defs", "definitions"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SINGLE = frozenset({"items", "additionalProperties"})
_INTEGER_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_LENGTHS = frozenset({"minLength", "maxLength", "minItems", "maxItems"})
_VALUES = frozenset({"type", "enum", "const", "$ref", "required", "pattern", "format"})
_FORMATS = frozenset({"date", "time", "date-time", "uuid"})
_MAX_LENGTH = 1000
_MAX_DEPTH = 32


def check_schema(schema: dict[str, object], param: str) -> None:
    """InvalidRequestError, whose param begins with `param`, for the first keyword that would not be honoured."""
    _check(schema, param, 0)


def _check(schema: object, where: str, depth: int) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise _refused(where, "a schema is an object, true or false")
    if depth > _MAX_DEPTH:
        raise _refused(where, f"schemas are nested at most {_MAX_DEPTH} deep")
    for keyword, value in schema.items():
        place = f"{where}.{keyword}"
        if problem := _problem(schema, keyword, value):
            raise _refused(place, problem)
        for inner, below in _inner(keyword, value, place):
            _check(inner, below, depth + 1)


def _problem(schema: dict[str, object], keyword: str, value: object) -> str:
    """What is wrong with one keyword of `schema`, or ""."""
    if keyword in _INTEGER_BOUNDS:
        return "" if schema.get("type") == "integer" else "only integers can be held to a bound"
    if keyword in _LENGTHS:
        is_fit = type(value) is int and 0 <= value <= _MAX_LENGTH
        return "" if is_fit else f"expected a whole number from 0 to {_MAX_LENGTH}"
    if keyword == "pattern":
        is_anchored = isinstance(value, str) and value.startswith("^") and value.endswith("$")
        return "" if is_anchored else "a pattern begins with ^ and ends with $"
    if keyword == "format":
        return "" if value in _FORMATS else f"expected one of {', '.join(sorted(_FORMATS))}"
    if keyword == "required":
        return "" if _are_properties(value, schema) else "a list of names that `properties` describes"
    if keyword in _MAPS:
        return "" if isinstance(value, dict) else "expected an object"
    if keyword in _LISTS:
        return "" if isinstance(value, list) and value else "expected a list of schemas"
    return "" if keyword in _VALUES | _SINGLE | _NOTES else "an answer cannot be held to this keyword"


def _are_properties(names: object, schema: dict[str, object]) -> bool:
    described = schema.get("properties")
    return isinstance(names, list) and all(isinstance(described, dict) and name in described for name in names)


def _inner(keyword: str, value: object, place: str) -> Iterator[tuple[object, str]]:
    """The schemas inside one keyword, and their places."""
    if keyword in _MAPS and isinstance(value, dict):
        yield from ((inner, f"{place}.{name}") for name, inner in value.items())
    elif keyword in _LISTS and isinstance(value, list):
        yield from ((inner, f"{place}[{index}]") for index, inner in enumerate(value))
    elif keyword in _SINGLE:
        yield value, place


def _refused(place: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"`{place}`: {problem}", param=place)
