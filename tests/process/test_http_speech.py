"""Text to speech through the whole runtime, as OpenAI's own client and plain HTTP clients see it."""

import base64
import io
import json
import re
import wave
from pathlib import Path

import av
import httpx
import numpy as np
import openai
import pytest
import soxr

from antiphon.server.audio_encode import AudioFormat
from tests.process.conftest import eventually
from tests.process.metrics_page import assert_nothing_is_held, later_totals, totals
from tests.process.raw_http import RawRequest
from tests.process.test_voice_quality import SENTENCES
from tests.unit.server.test_audio import DELAY_SAMPLES, FRAME_SAMPLES
from tests.words import word_errors, words

RATE = 24_000
SENTENCE = "The quick brown fox jumps over the lazy dog."
THREE_SENTENCES = f"{' '.join(SENTENCES[:2])} The museum is closed on Monday morning."
LONG_TEXT = " ".join(SENTENCES)
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


def assert_same_samples(pcm: bytes, expected: bytes) -> None:
    """Of one seed. The vocoder's rounding depends on how many frames are there at once, which is a matter of time."""
    assert len(pcm) == len(expected)
    assert np.abs(np.frombuffer(pcm, "<i2").astype(int) - np.frombuffer(expected, "<i2")).max() <= 2


def speech(client: openai.OpenAI, **wishes) -> bytes:
    return client.audio.speech.create(**{"model": "tts-1", "voice": "alloy", "input": SENTENCE, **wishes}).read()


@pytest.fixture(scope="module")
def spoken_pcm(voice_server) -> bytes:
    """Three sentences of one seed, s16le at 24 kHz."""
    body = {"model": "voice", "input": THREE_SENTENCES, "response_format": "pcm", "seed": 1}
    return httpx.post(f"{voice_server.url}/v1/audio/speech", json=body, timeout=120).content


@pytest.mark.parametrize("format", list(CONTAINERS))
def test_every_format_streamed_to_a_file_is_one_audio_with_all_of_the_speech(
    client, spoken_pcm, tmp_path: Path, format
):
    path = tmp_path / f"speech.{format}"
    wishes = {"response_format": format, "extra_body": {"seed": 1}}
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=THREE_SENTENCES, **wishes
    ) as response:
        response.stream_to_file(path)
    samples, rate = decoded(path.read_bytes(), CONTAINERS[format])
    assert_speech(samples[: samples.size // 3], rate)
    num_extra = samples.size * 24_000 / rate - len(spoken_pcm) / 2
    delay, frame = (sizes.get(AudioFormat(format), 0) for sizes in (DELAY_SAMPLES, FRAME_SAMPLES))
    assert 0 <= num_extra <= delay + frame
    heard = client.audio.transcriptions.create(model="whisper-1", file=path, language="en").text
    assert word_errors(THREE_SENTENCES, heard) <= 2
    assert words(heard)[-1] == "morning"


def test_pcm_comes_in_pieces_that_join_to_the_samples_of_one_seed(client, spoken_pcm):
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=THREE_SENTENCES, response_format="pcm", extra_body={"seed": 1}
    ) as response:
        pieces = list(response.iter_bytes())
    assert len(pieces) > 1
    assert_same_samples(b"".join(pieces), spoken_pcm)


def test_a_streamed_wav_is_read_by_pythons_wave(client, spoken_pcm):
    data = speech(client, input=THREE_SENTENCES, response_format="wav", extra_body={"seed": 1})
    with wave.open(io.BytesIO(data)) as file:
        assert file.getparams()[:3] == (1, 2, 24_000)
        assert_same_samples(file.readframes(file.getnframes()), spoken_pcm)


def test_another_sample_rate_is_the_same_speech(voice_server, client, spoken_pcm, tmp_path: Path):
    body = {"model": "tts-1", "input": THREE_SENTENCES, "response_format": "pcm", "seed": 1, "sample_rate": 8_000}
    answer = httpx.post(f"{voice_server.url}/v1/audio/speech", json=body, timeout=120)
    assert answer.headers["content-type"] == "audio/pcm;rate=8000;channels=1"
    assert len(answer.content) // 2 == round(len(spoken_pcm) / 2 / 3)
    assert_same_samples(answer.content, soxr.resample(np.frombuffer(spoken_pcm, "<i2"), 24_000, 8_000).tobytes())


def test_a_language_that_no_voice_speaks_is_a_400_that_names_the_one_spoken(client):
    with pytest.raises(openai.BadRequestError, match="speaks en-US, not 'de'") as raised:
        speech(client, extra_body={"language": "de"})
    assert raised.value.param == "language"
    assert_speech(
        np.frombuffer(speech(client, response_format="pcm", extra_body={"language": "en"}), "<i2") / 2**15, RATE
    )


def test_a_long_text_is_one_audio_without_a_word_missing(voice_server, tmp_path: Path):
    body = {"model": "tts-1", "input": LONG_TEXT, "response_format": "flac", "seed": 1}
    answer = httpx.post(f"{voice_server.url}/v1/audio/speech", json=body, timeout=120)
    files = {"file": ("speech.flac", answer.content)}
    form = {"model": "whisper-1", "language": "en"}
    heard = httpx.post(f"{voice_server.url}/v1/audio/transcriptions", data=form, files=files, timeout=120).json()[
        "text"
    ]
    assert word_errors(LONG_TEXT, heard) <= 0.1 * len(words(LONG_TEXT))
    assert words(heard)[-1] == "school"


def test_the_stages_rest_while_nobody_reads_a_long_text_and_go_on_when_somebody_does(voice_server):
    body = {"model": "voice", "input": f"{LONG_TEXT} " * 20, "response_format": "pcm"}  # 50 MB of audio
    assert len(body["input"]) > 15_000
    request = RawRequest(voice_server, "/v1/audio/speech", body, receive_bytes=4096)
    request.read_until(b"\r\n\r\n")

    def rest() -> bool:
        now = later_totals(voice_server)
        return now["client_backlog_bytes"] > 2**20 and now["requests_inflight"] == now["replica_inflight"] == 0

    assert eventually(rest, 120)
    made = totals(voice_server)["client_backlog_bytes"]
    assert made < 8e6 and not request.is_reset()
    before = len(request.received)
    while len(request.received) < before + made + 8e6:  # what waited, and more than any buffer on the way holds
        assert request.read_more()
    request.hang_up()
    assert_nothing_is_held(voice_server)


def test_events_join_to_the_audio_of_the_plain_answer(voice_server, client):
    body = {"model": "voice", "voice": "alloy", "input": SENTENCE, "response_format": "pcm", "seed": 1}
    answer = httpx.post(f"{voice_server.url}/v1/audio/speech", json={**body, "stream_format": "sse"}, timeout=120)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *deltas, done = [json.loads(data) for data in re.findall(r"^data: (.*)$", answer.text, re.MULTILINE)]
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    joined = b"".join(base64.b64decode(delta["audio"]) for delta in deltas)
    assert_same_samples(joined, speech(client, response_format="pcm", extra_body={"seed": 1}))
    assert done["type"] == "speech.audio.done"
    usage = done["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_speed_changes_the_length(client):
    slow, fast = (len(speech(client, response_format="pcm", speed=speed)) for speed in (0.5, 2.0))
    assert slow > 2 * fast


@pytest.mark.parametrize("voice", ["alloy", "marin", {"id": "nova"}])
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
