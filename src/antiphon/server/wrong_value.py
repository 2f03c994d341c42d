"""What is wrong with one value of a request, as a sentence: what it is, what it must be.

In: one of pydantic's problems. Out: words for the client. Does not know: HTTP, which fields there are.
"""

from collections.abc import Mapping
from typing import Any

_MAX_SHOWN_CHARS = 80
_MUST_BE = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "greater_than": "more than {gt}",
    "less_than": "less than {lt}",
}
"""pydantic's type of a problem -> what belongs behind "it must be"."""
_LENGTHS = {
    "too_short": "at least {min_length}",
    "too_long": "at most {max_length}",
    "string_too_short": "at least {min_length}",
    "string_too_long": "at most {max_length}",
}
_NO_FILE = "Expected UploadFile"


def wrong_value(field: str, problem: Mapping[str, Any]) -> str:
    """The sentence about `field`; a validator's own words are taken as they are."""
    kind, value, context = problem["type"], problem["input"], problem.get("ctx", {})
    what = f"`{field}` is {_described(value)}"
    if kind in _MUST_BE:
        return f"{what}; it must be {_MUST_BE[kind].format(**_plain(context))}"
    if kind in _LENGTHS:
        unit = "characters" if isinstance(value, str) else "items"
        return f"`{field}` has {len(value)} {unit}; it must have {_LENGTHS[kind].format(**context)}"
    if kind == "value_error":
        reason = str(context["error"])
        return f"{what}; it must be a file" if reason.startswith(_NO_FILE) else f"{what}; {reason}"
    return f"{what}: {str(problem['msg'])[:1].lower()}{problem['msg'][1:]}"


def _plain(context: Mapping[str, Any]) -> dict[str, Any]:
    """4 for 4.0."""
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in context.items()
    }


def _described(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str() | int() | float() if len(repr(value)) <= _MAX_SHOWN_CHARS:
            return repr(value)
        case str():
            return f"a text of {len(value)} characters"
        case int() | float():
            return "a number of many digits"
        case list() | tuple():
            return "a list"
        case _:
            return "an object"
