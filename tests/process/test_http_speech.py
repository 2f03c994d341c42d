"""Text to speech through the whole runtime, as OpenAI's own client and plain HTTP clients see it."""

import base64
import io
import json
import re
from pathlib import Path

import av
import httpx
import numpy as np
import openai
import pytest

SENTENCE = "The quick brown fox jumps over the lazy dog."
CONTAINERS = {"mp3": "mp3", "wav": "wav", "flac": "flac", "opus": "ogg", "aac": "aac"}


@pytest.fixture
def client(voice_server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{voice_server.url}/v1", api_key="none", max_retries=0, timeout=120)


def decoded(data: bytes, container_name: str) -> tuple[np.ndarray, int]:
    """float32 samples and rate of an encoded file; checks its container."""
    with av.open(io.BytesIO(data)) as container:
        assert container_name in container.format.name
        rate = container.streams.audio[0].rate
        resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
        frames = [out for frame in container.decode(audio=0) for out in resampler.resample(frame)]
        frames += [frame for frame in resampler.resample(None) or [] if frame is not None]
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames]), rate


def assert_speech(samples: np.ndarray, rate: int) -> None:
    """As long as the sentence takes to say, and neither silent nor clipped."""
    assert 1.5 < samples.size / rate < 8
    assert 0.01 < float(np.sqrt(np.mean(samples**2))) < 0.5
    assert float(np.abs(samples).max()) < 1.0


def speech(client: openai.OpenAI, **wishes) -> bytes:
    return client.audio.speech.create(model="tts-1", voice="alloy", input=SENTENCE, **wishes).read()


@pytest.mark.parametrize("format", list(CONTAINERS))
def test_every_format_to_a_file(client, tmp_path: Path, format):
    path = tmp_path / f"speech.{format}"
    client.audio.speech.create(model="tts-1", voice="alloy", input=SENTENCE, response_format=format).write_to_file(path)
    assert_speech(*decoded(path.read_bytes(), CONTAINERS[format]))


@pytest.mark.parametrize("format", [*CONTAINERS, "pcm"])
def test_every_format_streamed_comes_in_pieces_that_join_to_one_audio(client, format):
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=f"{SENTENCE} {SENTENCE} {SENTENCE}", response_format=format
    ) as response:
        pieces = list(response.iter_bytes())
    assert len(pieces) > 1
    data = b"".join(pieces)
    if format == "pcm":
        samples, rate = np.frombuffer(data, "<i2") / 32_768, 24_000
    else:
        samples, rate = decoded(data, CONTAINERS[format])
    assert_speech(samples[: samples.size // 3], rate)
    assert 4.5 < samples.size / rate < 24


def test_pcm_and_wav_of_one_seed_are_the_same_samples(client):
    pcm = speech(client, response_format="pcm", extra_body={"seed": 1})
    wav = speech(client, response_format="wav", extra_body={"seed": 1})
    assert wav[44:] == pcm


def test_events_join_to_the_audio_of_the_plain_answer(voice_server, client):
    body = {"model": "voice", "voice": "alloy", "input": SENTENCE, "response_format": "pcm", "seed": 1}
    answer = httpx.post(f"{voice_server.url}/v1/audio/speech", json={**body, "stream_format": "sse"}, timeout=120)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *deltas, done = [json.loads(data) for data in re.findall(r"^data: (.*)$", answer.text, re.MULTILINE)]
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    joined = b"".join(base64.b64decode(delta["audio"]) for delta in deltas)
    assert joined == speech(client, response_format="pcm", extra_body={"seed": 1})
    assert done["type"] == "speech.audio.done"
    usage = done["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_speed_changes_the_length(client):
    slow, fast = (len(speech(client, response_format="pcm", speed=speed)) for speed in (0.5, 2.0))
    assert slow > 2 * fast


@pytest.mark.parametrize("voice", ["alloy", "verse", {"id": "nova"}])
def test_openais_voices_are_known(voice_server, voice):
    body = {"model": "tts-1", "voice": voice, "input": "Hi there.", "response_format": "wav"}
    answer = httpx.post(f"{voice_server.url}/v1/audio/speech", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    assert answer.content[:4] == b"RIFF"


def test_every_listed_voice_speaks(voice_server):
    voices = httpx.get(f"{voice_server.url}/v1/audio/voices").json()["voices"]
    assert voices
    for voice in voices:
        body = {"model": "tts-1", "voice": voice["name"], "input": "Hi there.", "response_format": "pcm"}
        answer = httpx.post(f"{voice_server.url}/v1/audio/speech", json=body, timeout=120)
        assert (answer.status_code, len(answer.content) > 10_000) == (200, True)


def test_a_client_that_leaves_in_mid_stream_does_not_hold_up_the_next(voice_server, client):
    body = {"model": "tts-1", "voice": "alloy", "input": " ".join([SENTENCE] * 40), "response_format": "pcm"}
    with httpx.stream("POST", f"{voice_server.url}/v1/audio/speech", json=body, timeout=120) as response:
        assert response.status_code == 200
        next(response.iter_raw())
    assert_speech(np.frombuffer(speech(client, response_format="pcm"), "<i2") / 32_768, 24_000)
