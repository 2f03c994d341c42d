"""Whether what a model made can travel: every field is of the declared type, and its value has a place in a message.

In: a StageOutput as a model made it. Out: what is wrong with it, in words.
Does not know: stages, requests, what an output is for.

Without this a wrong field would end the process that encodes it, or cost every request of its frame their outputs.
"""

from collections.abc import Callable
from typing import get_args

import msgspec

from antiphon.messages.client import (
    ClientData,
    OutputEnd,
    SegmentScores,
    TokenChance,
    TokenLogprob,
    Usage,
    Word,
)
from antiphon.stage.request import StageOutput

_INT_LIMIT = 2**63
_LIST = (list, tuple)
_BYTES = (bytes, bytearray)
"""Made once: a union that stands in a call is made anew by each, and takes longer than to look at the value."""


def problem_of_form(output: StageOutput) -> str:
    """What of the output's containers is of another type than StageOutput declares, or "".

    Not the arrays of a consumer, which are looked at with what is declared of them.
    """
    first_rows = output.first_rows
    if not isinstance(output.handoff, dict):
        return "handoff is no dict of dicts"
    if not isinstance(output.client, _LIST):
        return f"client is a {type(output.client).__name__}, no tuple"
    if not isinstance(first_rows, dict) or (first_rows and not all(map(_is_int, first_rows.values()))):
        return "first_rows is no dict of ints"
    if output.finished:
        if type(output.usage) is not Usage:
            return f"usage is a {type(output.usage).__name__}"
        return problem_of(OutputEnd(output.finish_reason)) or problem_of(output.usage)
    return ""


def problem_of(message: msgspec.Struct) -> str:
    """The first field of the message, or of a part of it, that cannot travel, and what it is, or ""."""
    for name, check in _CHECKS[type(message)]:
        given: object = getattr(message, name)
        if not check(given):
            return f"{type(message).__name__}.{name} is {type(given).__name__} {ascii(given)[:40]}"
    return ""


def _is_text(value: object) -> bool:
    """A str without half a surrogate pair, which has no UTF-8."""
    try:
        return type(value) is str and (value.isascii() or bool(value.encode()))
    except UnicodeEncodeError:
        return False


def _is_int(value: object) -> bool:
    return type(value) is int and -_INT_LIMIT <= value < _INT_LIMIT


def _is_rate(value: object) -> bool:
    return type(value) is int and 0 < value < _INT_LIMIT


def _is_float(value: object) -> bool:
    return type(value) is float or _is_int(value)


def _is_bytes(value: object) -> bool:
    return isinstance(value, _BYTES) or (isinstance(value, memoryview) and value.c_contiguous)


def _are_ints(value: object) -> bool:
    return isinstance(value, _LIST) and all(map(_is_int, value))


def _is_usage(value: object) -> bool:
    return type(value) is Usage


def _is_one(kind: type[msgspec.Struct]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kind) and not problem_of(value)


def _are_all(kind: type[msgspec.Struct]) -> Callable[[object], bool]:
    is_one = _is_one(kind)
    return lambda value: value == () or (isinstance(value, tuple) and all(map(is_one, value)))


_BY_TYPE: dict[object, Callable[[object], bool]] = {
    str: _is_text,
    int: _is_int,
    float: _is_float,
    bytes: _is_bytes,
    list[int]: _are_ints,
    tuple[int, ...]: _are_ints,
    Usage: _is_usage,
    TokenChance: _is_one(TokenChance),
    tuple[TokenChance, ...]: _are_all(TokenChance),
    tuple[TokenLogprob, ...]: _are_all(TokenLogprob),
    tuple[Word, ...]: _are_all(Word),
    SegmentScores | None: lambda value: value is None or _is_one(SegmentScores)(value),
}
_BY_NAME = {"sample_rate": _is_rate}
_CHECKS = {
    kind: tuple((field.name, _BY_NAME.get(field.name, _BY_TYPE[field.type])) for field in msgspec.structs.fields(kind))
    for kind in (*get_args(ClientData), OutputEnd, Usage, TokenChance, TokenLogprob, Word, SegmentScores)
}
