"""Chat through the whole runtime, written and spoken, as OpenAI's own client sees it."""

import base64
import io
import json

import av
import numpy as np
import openai
import pytest

QUESTION = [{"role": "user", "content": "Name three colours, in one short sentence."}]
CALM = {"temperature": 0, "max_tokens": 24, "seed": 1}


@pytest.fixture
def client(voice_server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{voice_server.url}/v1", api_key="none", max_retries=0, timeout=120)


def duration_s(data: bytes) -> float:
    with av.open(io.BytesIO(data)) as container:
        rate = container.streams.audio[0].rate
        return sum(frame.samples for frame in container.decode(audio=0)) / rate


def test_a_whole_text_answer_has_words_usage_and_a_reason(client):
    answer = client.chat.completions.create(model="voice", messages=QUESTION, **CALM)
    choice = answer.choices[0]
    assert choice.message.content.strip()
    assert choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.prompt_tokens > 5
    assert 0 < answer.usage.completion_tokens <= 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_streamed_text_answer_joins_to_the_whole_one(client):
    whole = client.chat.completions.create(model="voice", messages=QUESTION, **CALM)
    chunks = list(
        client.chat.completions.create(
            model="voice", messages=QUESTION, stream=True, stream_options={"include_usage": True}, **CALM
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    *said, finish = [chunk for chunk in chunks if chunk.choices]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in said) == whole.choices[0].message.content
    assert finish.choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert sum(bool(chunk.choices[0].delta.content) for chunk in said) > 3


def test_max_tokens_ends_the_answer_with_the_reason_length(client):
    answer = client.chat.completions.create(
        model="voice", messages=QUESTION, max_completion_tokens=3, temperature=0, extra_body={"ignore_eos": True}
    )
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 3)


def test_stop_ends_the_answer_before_the_stop_text(client):
    whole = client.chat.completions.create(model="voice", messages=QUESTION, **CALM).choices[0].message.content
    middle = whole.split()[len(whole.split()) // 2]
    stopped = client.chat.completions.create(model="voice", messages=QUESTION, stop=middle, **CALM).choices[0]
    assert stopped.message.content == whole[: whole.index(middle)]
    assert stopped.finish_reason == "stop"


def test_a_tiny_top_p_leaves_the_greedy_answer_at_any_temperature(client):
    greedy = client.chat.completions.create(model="voice", messages=QUESTION, **CALM).choices[0].message.content
    hot = {"temperature": 2, "max_tokens": 24}
    same = client.chat.completions.create(model="voice", messages=QUESTION, top_p=0.001, **hot)
    assert same.choices[0].message.content == greedy
    free = client.chat.completions.create(
        model="voice", messages=QUESTION, top_p=1, seed=5, extra_body={"top_k": 0, "min_p": 0}, **hot
    )
    assert free.choices[0].message.content != greedy


@pytest.mark.parametrize("stream", [False, True])
def test_several_answers_have_their_own_words_and_the_usage_of_all(client, stream):
    asked = {"model": "voice", "messages": QUESTION, "n": 3, "temperature": 1.5, "max_tokens": 12, "seed": 3}
    texts, reasons = {}, {}
    if stream:
        options = {"include_usage": True}
        for chunk in client.chat.completions.create(stream=True, stream_options=options, **asked):
            usage = chunk.usage
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
                reasons[choice.index] = choice.finish_reason
    else:
        answer = client.chat.completions.create(**asked)
        usage = answer.usage
        for choice in answer.choices:
            texts[choice.index], reasons[choice.index] = choice.message.content, choice.finish_reason
    assert sorted(texts) == [0, 1, 2]
    assert len(set(texts.values())) == 3, "each has a seed of its own"
    assert set(reasons.values()) <= {"stop", "length"}
    assert 12 < usage.completion_tokens <= 36
    assert usage.prompt_tokens < 60, "the prompt is the same for all and counts once"


def test_log_probabilities_come_with_the_text_whole_and_streamed(client):
    asked = {"model": "voice", "messages": QUESTION, "logprobs": True, "top_logprobs": 3, **CALM}
    whole = client.chat.completions.create(**asked).choices[0]
    told = whole.logprobs.content
    assert "".join(entry.token for entry in told) == whole.message.content
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 3 for entry in told)
    streamed = [
        entry
        for chunk in client.chat.completions.create(stream=True, **asked)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert [entry.token for entry in streamed] == [entry.token for entry in told]


def test_an_answer_in_json_fits_the_schema(client):
    schema = {
        "type": "object",
        "properties": {"colours": {"type": "array", "items": {"type": "string", "maxLength": 9}, "maxItems": 3}},
        "required": ["colours"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model="voice",
        messages=QUESTION,
        temperature=0,
        max_tokens=80,
        response_format={"type": "json_schema", "json_schema": {"name": "colours", "schema": schema}},
    )
    colours = json.loads(answer.choices[0].message.content)["colours"]
    assert all(isinstance(colour, str) and len(colour) <= 9 for colour in colours)


def test_what_follows_a_stop_text_is_neither_written_nor_spoken(client):
    spoken = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}, "model": "voice"}
    whole = client.chat.completions.create(messages=QUESTION, **spoken, **CALM).choices[0].message
    first, second = whole.content.split()[2:4]
    cut = client.chat.completions.create(messages=QUESTION, stop=[f"{first} {second}"], **spoken, **CALM).choices[0]
    assert cut.message.content == whole.content[: whole.content.index(f"{first} {second}")], "a stop of several tokens"
    assert cut.finish_reason == "stop"
    assert cut.message.audio.transcript == cut.message.content
    shown = len(cut.message.content) / len(whole.content)
    assert len(cut.message.audio.data) < (shown + 0.3) * len(whole.audio.data)


@pytest.mark.parametrize("format", ["wav", "mp3", "flac", "opus", "pcm16"])
def test_a_whole_spoken_answer_is_audio_with_its_transcript(client, format):
    answer = client.chat.completions.create(
        model="voice",
        messages=QUESTION,
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": format},
        **CALM,
    )
    message = answer.choices[0].message
    assert message.audio.transcript == message.content
    assert message.content.strip()
    data = base64.b64decode(message.audio.data, validate=True)
    seconds = len(data) / 48_000 if format == "pcm16" else duration_s(data)
    assert seconds > 0.5


def test_a_streamed_spoken_answer_speaks_while_it_writes(client):
    deltas = [
        chunk.choices[0].delta.model_dump(exclude_none=True)
        for chunk in client.chat.completions.create(
            model="voice",
            messages=QUESTION,
            modalities=["text", "audio"],
            audio={"voice": "alloy", "format": "pcm16"},
            stream=True,
            **CALM,
        )
    ]
    spoken = [delta["audio"] for delta in deltas if "audio" in delta]
    text = "".join(delta.get("content", "") for delta in deltas)
    pcm = np.frombuffer(b"".join(base64.b64decode(part["data"]) for part in spoken if "data" in part), "<i2")
    assert text.strip()
    assert "".join(part.get("transcript", "") for part in spoken) == text
    assert pcm.size > 12_000
    assert np.abs(pcm).max() > 1_000


def test_a_spoken_question_is_answered(client):
    question = client.audio.speech.create(
        model="tts-1", voice="alloy", input="What is the capital of France?", response_format="wav"
    ).read()
    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(question).decode(), "format": "wav"}}
    answer = client.chat.completions.create(
        model="voice",
        messages=[{"role": "user", "content": [part]}],
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "wav"},
        **CALM,
    )
    message = answer.choices[0].message
    assert message.content.strip()
    assert duration_s(base64.b64decode(message.audio.data)) > 0.3


def test_the_streaming_helper_of_openais_client_joins_text_and_audio(client):
    with client.chat.completions.stream(
        model="voice",
        messages=QUESTION,
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "pcm16"},
        **CALM,
    ) as stream:
        for _ in stream:
            pass
        message = stream.get_final_completion().choices[0].message
    assert message.audio.transcript == message.content
    assert len(base64.b64decode(message.audio.data, validate=True)) > 24_000
