"""Chat over HTTP from the autoregressive engine: as a pipeline of its own, and as the thinker of `voice`."""

from collections.abc import Iterator

import openai
import pytest

from tests.process.conftest import Server, start_server

pytest.importorskip("transformers")

SERVED = {"hf-text": ("hf-text",), "voice": ("voice", "--set", "stages.thinker.engine=autoregressive")}
QUESTION = [{"role": "user", "content": "Name three fruits."}]
CALM = {"temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module", params=SERVED)
def model(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def server(model: str) -> Iterator[Server]:
    server = start_server(*SERVED[model])
    yield server
    assert server.stop() == 0, "the server did not stop cleanly"


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)


def test_a_chat_completes_with_its_usage_and_reason(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=QUESTION, **CALM)
    (choice,) = answer.choices
    assert len(choice.message.content.split()) > 3
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    assert answer.usage.prompt_tokens == 34


def test_a_stop_string_ends_the_answer_before_it(client: openai.OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=QUESTION, **CALM).choices[0].message.content
    stop = whole[len(whole) // 2 :][:3]
    stream = client.chat.completions.create(model=model, messages=QUESTION, stop=[stop], stream=True, **CALM)
    *said, last = [chunk for chunk in stream if chunk.choices]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in said) == whole[: whole.index(stop)]
    assert last.choices[0].finish_reason == "stop"


def test_a_conversation_longer_than_the_context_is_the_clients_error(client: openai.OpenAI, model: str) -> None:
    too_long = [{"role": "user", "content": "7" * 9000}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=too_long, **CALM)
    assert caught.value.code == "context_length_exceeded"


def test_an_answer_can_be_spoken(server: Server, model: str, client: openai.OpenAI) -> None:
    if model != "voice":
        pytest.skip("hf-text only writes")
    answer = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "pcm16"},
        **CALM,
    )
    spoken = answer.choices[0].message.audio
    assert spoken.transcript.strip() and len(spoken.data) > 10_000
