"""Refusals read as one sentence: what the value is, what it must be."""

import pytest
from pydantic import BaseModel, ValidationError

from antiphon.errors import InvalidRequestError
from antiphon.server.chat_schema import ChatRequest
from antiphon.server.http_errors import invalid_request
from antiphon.server.schema import SpeechRequest

MESSAGES = [{"role": "user", "content": "Hi."}]


def told(kind: type[BaseModel], **fields: object) -> InvalidRequestError:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate({"model": "voice", "messages": MESSAGES, "input": "Hi.", **fields})
    return invalid_request([{**problem, "loc": ("body", *problem["loc"])} for problem in caught.value.errors()])


@pytest.mark.parametrize(
    ("kind", "fields", "sentence"),
    [
        (SpeechRequest, {"speed": 9}, "`speed` is 9; it must be at most 4"),
        (SpeechRequest, {"speed": "quick"}, "`speed` is 'quick'; it must be a number"),
        (SpeechRequest, {"sample_rate": 24000.5}, "`sample_rate` is 24000.5; it must be a whole number"),
        (SpeechRequest, {"stream": "perhaps"}, "`stream` is 'perhaps'; it must be true or false"),
        (SpeechRequest, {"stream_format": "tape"}, "`stream_format` is 'tape'; it must be 'audio' or 'sse'"),
        (SpeechRequest, {"input": ["Hi."]}, "`input` is a list; it must be a text"),
        (SpeechRequest, {"voice": {"name": "x"}}, "`voice` is an object; it must be a text"),
        (SpeechRequest, {"voice": 10**90}, "`voice` is a number of many digits; it must be a text"),
        (ChatRequest, {"messages": "x" * 200}, "`messages` is a text of 200 characters; it must be a list"),
        (ChatRequest, {"messages": []}, "`messages` has 0 items; it must have at least 1"),
        (ChatRequest, {"stop": ["a"] * 5}, "`stop` has 5 items; it must have at most 4"),
        (ChatRequest, {"messages": ["Hi."]}, "`messages[0]` is 'Hi.'; it must be an object"),
        (
            ChatRequest,
            {"reasoning_effort": "low"},
            "`reasoning_effort` is 'low'; this server cannot do what it asks for; leave it out",
        ),
    ],
)
def test_a_refusal_says_what_the_value_is_and_what_it_must_be(
    kind: type[BaseModel], fields: dict[str, object], sentence: str
) -> None:
    error = told(kind, **fields)
    assert error.message == sentence and f"`{error.param}`" in sentence
