"""Which JSON Schemas an answer can be held to: those of which every keyword becomes part of the grammar.

In: a schema as a client sends it. Out: nothing, or an InvalidRequestError naming the keyword and its place.
Does not know: grammars, engines. A keyword that would be dropped is refused: the answer might not fit the schema.
"""

import re
from collections.abc import Callable, Iterator
from math import prod

from antiphon.errors import InvalidRequestError

_NOTES = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
    | {"$schema", "$id", "$comment", "$anchor", "strict"}
)
_MAPS = frozenset({"properties", "$defs", "definitions"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SINGLE = frozenset({"items", "additionalProperties"})
_BOUNDS = {
    "minimum": "",
    "exclusiveMinimum": "",
    "maximum": "minimum",
    "exclusiveMaximum": "exclusiveMinimum",
    "minLength": "",
    "maxLength": "minLength",
    "minItems": "",
    "maxItems": "minItems",
}
"""Keyword -> the one that it must not be below, or "": llama.cpp takes a minute over a length that is."""
_TYPES = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_FORMATS = frozenset({"date", "time", "date-time", "uuid"})
_PATTERN = re.compile(
    r"\^(?:[^\\(){}\[\]^$]|\[\^?[^\\\[\]]+\]|\((?!\?)|\)|\{\d{1,3}(?:,\d{0,3})?\})*\$",
)
"""What llama.cpp makes a grammar of; for other patterns it takes any string."""
_GROUP_REPETITION = re.compile(r"\)\{(\d+)(?:,(\d*))?\}")
_MAX_GROUP_REPETITIONS = 16
"""Of groups in groups, in all: (a?){99} takes llama.cpp minutes for each token, and every other chat waits."""
_MAX_LENGTH = 1000
_MAX_INTEGER = 2**53
_MAX_GROUPS = 16
_MAX_DEPTH = 32


def check_schema(schema: dict[str, object], param: str) -> None:
    """InvalidRequestError, whose param begins with `param`, for the first keyword that would not be honoured."""
    _check(schema, param, 0)


def _check(schema: object, where: str, depth: int) -> None:
    if not isinstance(schema, dict):
        raise _refused(where, "it must be a schema, which is an object")
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
    if keyword in _BOUNDS:
        return _problem_of_bound(schema, keyword, value)
    if keyword in _VALUES:
        is_fit, expected = _VALUES[keyword]
        return "" if is_fit(value) else expected
    if keyword == "required":
        return "" if _are_properties(value, schema) else "it must be a list of names that `properties` describes"
    if keyword in _MAPS:
        return "" if isinstance(value, dict) else "it must be an object"
    if keyword in _LISTS:
        return "" if isinstance(value, list) and value else "it must be a list of schemas"
    return "" if keyword in _SINGLE | _NOTES else "no answer can be held to this keyword; leave it out"


def _problem_of_bound(schema: dict[str, object], keyword: str, value: object) -> str:
    is_length = keyword.endswith(("Length", "Items"))
    if not is_length and schema.get("type") != "integer":
        return "only integers can be held to a bound; leave it out, or say `type: integer`"
    least, most = (0, _MAX_LENGTH) if is_length else (-_MAX_INTEGER, _MAX_INTEGER)
    if type(value) is not int or not least <= value <= most:
        return f"it must be a whole number from {least} to {most}"
    least_bound = schema.get(_BOUNDS[keyword])
    if isinstance(least_bound, int) and least_bound > value:
        return f"it must not be below `{_BOUNDS[keyword]}`"
    return ""


def _is_type(value: object) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in _TYPES for name in names)


def _is_pattern(value: object) -> bool:
    if not isinstance(value, str) or value.count("(") > _MAX_GROUPS or _PATTERN.fullmatch(value) is None:
        return False
    counts = (max(int(least), int(most or 0)) for least, most in _GROUP_REPETITION.findall(value))
    return prod(counts) <= _MAX_GROUP_REPETITIONS and _is_regular(value)


def _is_regular(pattern: str) -> bool:
    """llama.cpp takes all memory for a{3,2}, and fails in mid-answer for [z-a]."""
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


_VALUES: dict[str, tuple[Callable[[object], bool], str]] = {
    "type": (_is_type, f"it must be one of {', '.join(sorted(_TYPES))}, or a list of them"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "it must be a list of values"),
    "const": (lambda value: True, ""),
    "$ref": (
        lambda value: isinstance(value, str) and value.startswith("#/"),
        "it must be a place in this schema: #/...",
    ),
    "pattern": (
        _is_pattern,
        "it must be a valid ^...$ of characters, [classes], (groups), | and repetitions (of groups 16 in all), without "
        "backslashes",
    ),
    "format": (
        lambda value: isinstance(value, str) and value in _FORMATS,
        f"it must be one of {', '.join(sorted(_FORMATS))}",
    ),
}
"""Keyword -> what its value must be, and how to say so."""


def _are_properties(names: object, schema: dict[str, object]) -> bool:
    described = schema.get("properties")
    known = frozenset(described) if isinstance(described, dict) else frozenset()
    return isinstance(names, list) and all(isinstance(name, str) and name in known for name in names)


def _inner(keyword: str, value: object, place: str) -> Iterator[tuple[object, str]]:
    """The schemas inside one keyword, and their places."""
    if keyword in _MAPS and isinstance(value, dict):
        yield from ((inner, f"{place}.{name}") for name, inner in value.items())
    elif keyword in _LISTS and isinstance(value, list):
        yield from ((inner, f"{place}[{index}]") for index, inner in enumerate(value))
    elif keyword in _SINGLE and not (keyword == "additionalProperties" and isinstance(value, bool)):
        yield value, place


def _refused(place: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"`{place}`: {problem}", param=place)
