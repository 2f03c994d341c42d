"""An error is the same error on the other side of the wire."""

import msgspec
import pytest

from antiphon.errors import (
    AntiphonError,
    ConfigError,
    InvalidRequestError,
    OverloadedError,
    ReplicaDiedError,
    RequestError,
    StageError,
)
from antiphon.messages.control import RequestFailed
from antiphon.messages.error_info import ErrorInfo, to_error, to_info


def subclasses_of(kind: type[AntiphonError]) -> list[type[AntiphonError]]:
    """`kind` and all below it that antiphon.errors declares."""
    found = [kind] if kind.__module__ == "antiphon.errors" else []
    return found + [sub for child in kind.__subclasses__() for sub in subclasses_of(child)]


CROSSING = [*subclasses_of(RequestError), *subclasses_of(StageError), *subclasses_of(ReplicaDiedError), OverloadedError]


def across(error: AntiphonError) -> AntiphonError:
    wire = msgspec.msgpack.encode(RequestFailed("req-1", to_info(error)))
    return to_error(msgspec.msgpack.decode(wire, type=RequestFailed).error)


def test_the_tree_has_the_errors_that_cross() -> None:
    names = {kind.__name__ for kind in CROSSING}
    assert {"RequestAbortedError", "UnknownModelError", "ChunkGapError", "HandoffTimeoutError"} <= names
    assert len(names) == len(CROSSING)


@pytest.mark.parametrize("kind", CROSSING)
def test_an_error_comes_back_with_its_class_message_param_and_code(kind: type[AntiphonError]) -> None:
    error = across(kind("what happened, to whom", param="voice", code="my_code"))
    assert type(error) is kind
    assert (error.message, error.param, error.code) == ("what happened, to whom", "voice", "my_code")
    assert str(error) == "what happened, to whom"


@pytest.mark.parametrize("kind", CROSSING)
def test_an_error_without_param_and_code_comes_back_with_its_classs_code(kind: type[AntiphonError]) -> None:
    error = across(kind("what happened"))
    assert (error.param, error.code) == ("", kind.default_code)
    assert error.http_status == kind.http_status


def test_the_time_to_wait_crosses() -> None:
    error = across(OverloadedError("full", retry_after_s=12.5))
    assert isinstance(error, OverloadedError)
    assert error.retry_after_s == 12.5


def test_an_error_that_no_request_can_have_becomes_a_stage_error() -> None:
    assert type(across(ConfigError(["wrong", "too"]))) is StageError
    assert across(ConfigError(["wrong", "too"])).message == "wrong\ntoo"
    assert type(to_error(ErrorInfo("SystemExit", "no class of ours"))) is StageError


def test_a_message_that_is_too_long_is_cut() -> None:
    assert across(InvalidRequestError("x" * 1_999 + "yz")).message == "x" * 1_999 + "y"


def test_a_message_that_has_no_utf_8_crosses_with_question_marks() -> None:
    info = to_info(StageError("no file caf\udce9.wav"))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(info), type=type(info)).message == "no file caf?.wav"
