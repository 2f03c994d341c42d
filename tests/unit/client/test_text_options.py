"""What a chat asks of the stage that writes its answer: honoured as declared, or refused by name."""

import msgspec
import pytest

from antiphon.client.text_options import TextOptions
from antiphon.config.resolve import parse_settings, resolve
from antiphon.errors import InvalidRequestError, UnsupportedOptionError
from antiphon.messages.params import SamplingParams
from antiphon.messages.tasks import ChatInput, ChatMessage, ToolCall
from antiphon.models.registry import load_pipeline

TURNS = (ChatMessage("user", "Hi."),)
CALLED = (*TURNS, ChatMessage("assistant", tool_calls=(ToolCall("c1", "f", "{}"),)), ChatMessage("tool", "1"))
ASKED = {
    "presence_penalty": ChatInput(TURNS, SamplingParams(presence_penalty=0.5)),
    "frequency_penalty": ChatInput(TURNS, SamplingParams(frequency_penalty=-0.5)),
    "logit_bias": ChatInput(TURNS, SamplingParams(logit_bias=((5, 1.0),))),
    "logprobs": ChatInput(TURNS, SamplingParams(logprobs=0)),
    "response_format": ChatInput(TURNS, json_schema="{}"),
    "tools": ChatInput(TURNS, tools=("{}",)),
    "messages": ChatInput(CALLED),
}


def refused(pipeline: str, *settings: str) -> set[str]:
    spec = load_pipeline(pipeline)
    options = TextOptions(spec, resolve(pipeline, spec, settings=parse_settings(settings)).config)
    options.check(ChatInput(TURNS))
    return {param for param, chat in ASKED.items() if is_refused(options, chat, param)}


def is_refused(options: TextOptions, chat: ChatInput, param: str) -> bool:
    try:
        options.check(chat)
    except UnsupportedOptionError as error:
        return (error.param, error.http_status, f"`{param}`" in error.message) == (param, 400, True)
    return False


@pytest.mark.parametrize(
    ("pipeline", "settings", "expected"),
    [
        ("voice", (), {"tools", "messages"}),
        ("voice", ("stages.thinker.engine=autoregressive",), {"response_format"}),
        ("hf-text", (), {"response_format"}),
        ("qwen3-omni", (), {"response_format", "tools", "messages"}),
        ("sim-voice", (), set(ASKED)),
    ],
)
def test_what_the_stage_does_not_declare_on_its_engine_is_refused(
    pipeline: str, settings: tuple[str, ...], expected: set[str]
) -> None:
    assert refused(pipeline, *settings) == expected


@pytest.mark.parametrize(
    ("engine", "param", "other"),
    [("llama_cpp", "tools", "autoregressive"), ("autoregressive", "response_format", "llama_cpp")],
)
def test_the_error_says_with_which_engine_the_stage_could(engine: str, param: str, other: str) -> None:
    spec = load_pipeline("voice")
    config = resolve("voice", spec, settings=parse_settings((f"stages.thinker.engine={engine}",))).config
    with pytest.raises(UnsupportedOptionError, match=f"; with stages.thinker.engine={other} it can$"):
        TextOptions(spec, config).check(ASKED[param])


def test_an_answer_in_json_cannot_go_on_behind_the_json() -> None:
    spec = load_pipeline("voice")
    options = TextOptions(spec, resolve("voice", spec).config)
    chat = ChatInput(TURNS, msgspec.structs.replace(SamplingParams(), ignore_eos=True), json_schema="{}")
    with pytest.raises(InvalidRequestError, match="ends where the JSON does"):
        options.check(chat)
