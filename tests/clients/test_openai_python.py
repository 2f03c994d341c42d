"""OpenAI's Python client: speech as files and events, chat with audio, transcription, errors, timeouts, hanging up."""

import base64
import io
import json

import httpx
import openai
import pytest

from tests.clients.hearing import RATE, assert_same, assert_says
from tests.process.conftest import Server
from tests.process.metrics_page import assert_nothing_is_held
from tests.wav import wav_of

SENTENCE = "The old man walked slowly along the beach."
LONG_TEXT = f"{SENTENCE} " * 40
QUESTION = [{"role": "user", "content": "Say hello."}]
SEED = {"seed": 1}
"""Of the noise in a voice: what is heard does not depend on chance."""
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}}


@pytest.fixture(scope="module")
def client(server: Server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.mark.parametrize("format", ["mp3", "opus", "flac", "wav"])
def test_speech_is_streamed_to_a_file(server, client, tmp_path, format):
    path = tmp_path / f"speech.{format}"
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="nova", input=SENTENCE, response_format=format, extra_body=SEED
    ) as response:
        response.stream_to_file(path)
    assert_says(server, path.read_bytes(), SENTENCE)


def test_speech_comes_as_events(server, client):
    with client.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts",
        voice="alloy",
        input=SENTENCE,
        response_format="pcm",
        stream_format="sse",
        extra_body=SEED,
    ) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    *deltas, done = [json.loads(line) for line in lines]
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert done["type"] == "speech.audio.done" and done["usage"]["total_tokens"] > 0
    pcm = b"".join(base64.b64decode(event["audio"]) for event in deltas)
    assert_says(server, wav_of(pcm), SENTENCE)


def test_chat_is_streamed_with_audio(client):
    stream = client.chat.completions.create(
        model="voice", messages=QUESTION, stream=True, max_tokens=16, temperature=0, **SPOKEN
    )
    text, transcript, pcm = "", "", b""
    for chunk in stream:
        delta = chunk.choices[0].delta.model_dump(exclude_none=True)
        audio = delta.get("audio", {})
        text += delta.get("content", "")
        transcript += audio.get("transcript", "")
        pcm += base64.b64decode(audio.get("data", ""))
    assert text.strip() and transcript == text
    assert len(pcm) > RATE


@pytest.mark.parametrize("format", ["json", "text", "verbose_json", "srt", "vtt"])
def test_a_file_is_transcribed(client, format):
    speech = client.audio.speech.create(
        model="tts-1", voice="alloy", input=SENTENCE, response_format="mp3", extra_body=SEED
    ).read()
    heard = client.audio.transcriptions.create(model="whisper-1", file=("speech.mp3", speech), response_format=format)
    text = heard if isinstance(heard, str) else heard.text
    if format in ("srt", "vtt"):
        text = " ".join(line for line in text.splitlines() if line[:1].isalpha() and line != "WEBVTT")
    assert_same(SENTENCE, text)


@pytest.mark.parametrize(
    ("ask", "expected", "param"),
    [
        (
            lambda client: client.audio.speech.create(model="tts-1", voice="alloy", input=" "),
            openai.BadRequestError,
            "input",
        ),
        (
            lambda client: client.audio.speech.create(model="gpt-9", voice="alloy", input="Hi."),
            openai.NotFoundError,
            "model",
        ),
        (
            lambda client: client.chat.completions.create(model="voice", messages=[]),
            openai.BadRequestError,
            "messages",
        ),
        (
            lambda client: client.audio.transcriptions.create(model="whisper-1", file=("a.wav", io.BytesIO(b"noise"))),
            openai.BadRequestError,
            "file",
        ),
        (lambda client: client.images.generate(model="voice", prompt="A bird."), openai.NotFoundError, None),
    ],
)
def test_a_refusal_is_the_error_class_that_the_client_has_for_it(client, ask, expected, param):
    with pytest.raises(expected) as refused:
        ask(client)
    assert type(refused.value) is expected
    assert refused.value.param == param
    assert refused.value.type == "invalid_request_error"
    assert refused.value.message and refused.value.request_id


def test_a_client_that_loses_patience_leaves_nothing_behind(server, client):
    impatient = client.with_options(timeout=httpx.Timeout(60, read=0.02))
    with pytest.raises(openai.APITimeoutError):
        impatient.chat.completions.create(
            model="voice", messages=QUESTION, max_tokens=100, extra_body={"ignore_eos": True}
        )
    assert_nothing_is_held(server, timeout_s=30)


def test_a_client_that_leaves_in_mid_stream_leaves_nothing_behind(server, client):
    chat = client.chat.completions.create(
        model="voice", messages=QUESTION, stream=True, max_tokens=200, extra_body={"ignore_eos": True}, **SPOKEN
    )
    next(iter(chat))
    chat.close()
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=LONG_TEXT, response_format="mp3"
    ) as response:
        next(response.iter_bytes(1024))
    assert_nothing_is_held(server, timeout_s=30)
