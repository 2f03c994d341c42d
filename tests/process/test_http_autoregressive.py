"""Chat over HTTP from the autoregressive engine: as a pipeline of its own, and as the thinker of `voice`."""

from collections.abc import Iterator

import openai
import pytest

from tests.process.conftest import Server, start_server

pytest.importorskip("transformers")

ONE_THREAD = (
    "--set",
    "stages.thinker.threads=1",
)  # two that wait for one another by spinning are slower on a busy machine
SERVED = {
    "hf-text": ("hf-text", *ONE_THREAD),
    "voice": ("voice", "--set", "stages.thinker.engine=autoregressive", *ONE_THREAD),
}
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


def test_log_probabilities_and_bias_are_the_samplers(client: openai.OpenAI, model: str) -> None:
    asked = {"model": model, "messages": QUESTION, "logprobs": True, "top_logprobs": 2, **CALM}
    choice = client.chat.completions.create(**asked).choices[0]
    told = choice.logprobs.content
    assert "".join(entry.token for entry in told) == choice.message.content
    assert all(entry.logprob == entry.top_logprobs[0].logprob for entry in told), "greedy takes the likeliest"
    biased = client.chat.completions.create(logit_bias={"19556": 100}, frequency_penalty=2, **asked).choices[0]
    assert {entry.token for entry in biased.logprobs.content} == {"Hello"}, "100 outweighs 8 times 2"
    assert biased.logprobs.content[0].top_logprobs[0] == told[0].top_logprobs[0], "as the model gave them"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(logit_bias={"49152": 1}, **asked)
    assert caught.value.param == "logit_bias", "there are 49,152 tokens"


def test_tools_that_the_template_would_drop_and_answers_in_json_are_refused(client: openai.OpenAI, model: str) -> None:
    for param, change in (
        ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        ("messages", {"messages": [*QUESTION, {"role": "tool", "tool_call_id": "c1", "content": "5"}]}),
        ("response_format", {"response_format": {"type": "json_object"}}),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**{"model": model, "messages": QUESTION, **CALM, **change})
        assert (caught.value.param, caught.value.code) == (param, "unsupported_parameter")


def test_several_answers_have_their_own_seeds(client: openai.OpenAI, model: str) -> None:
    asked = {"model": model, "messages": QUESTION, "temperature": 1.5, "max_tokens": 8}
    several = client.chat.completions.create(n=2, seed=4, **asked)
    texts = [choice.message.content for choice in several.choices]
    assert texts[0] != texts[1] and several.usage.completion_tokens <= 16
    assert client.chat.completions.create(seed=5, **asked).choices[0].message.content == texts[1]
