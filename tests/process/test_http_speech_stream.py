"""WebSocket /v1/audio/speech/stream through the whole runtime; what raw answers came to, asked of any api-server."""

import base64
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import httpx
import numpy as np
import pytest
from websockets.sync.client import ClientConnection, connect

from antiphon.models.simulated.voice_values import spoken
from tests.process.conftest import Server, eventually, start_server
from tests.process.metrics_page import assert_nothing_is_held, totals
from tests.process.raw_http import RawRequest
from tests.process.test_voice_quality import RATE, SENTENCES, listen
from tests.words import word_errors, words

DOCUMENT = Path(__file__).parents[2] / "docs/http_api.md"
TEXT = " ".join(SENTENCES[:3])


@pytest.fixture(scope="module")
def two_api_servers(runtime_dir) -> Iterator[Server]:
    """`sim-voice`, with stages that take 10 ms for a step."""
    words = ("--api-servers", "2", "--set", "stages.talker.model=0.01s")
    running = start_server("sim-voice", *words)
    yield running
    assert running.stop() == 0


@contextmanager
def talk_to(server: Server) -> Iterator[ClientConnection]:
    with connect(f"ws://127.0.0.1:{server.port}/v1/audio/speech/stream", max_size=None) as talk:
        assert hear(talk)["type"] == "session.created"
        yield talk


def say(talk: ClientConnection, kind: str, **fields: object) -> None:
    talk.send(json.dumps({"type": kind, **fields}))


def hear(talk: ClientConnection) -> dict:
    return json.loads(talk.recv(timeout=60))


def audio_until(talk: ClientConnection, kind: str) -> tuple[bytes, dict]:
    """All audio before the event of that kind, and the event."""
    encoded = b""
    while (event := hear(talk))["type"] == "speech.audio.delta":
        encoded += base64.b64decode(event["audio"])
    assert event["type"] == kind, event
    return encoded, event


def test_a_text_in_pieces_sounds_as_the_text_in_one_request(voice_server):
    with talk_to(voice_server) as talk, httpx.Client(base_url=voice_server.url, timeout=120) as http:
        say(talk, "session.update", session={"voice": "alloy", "seed": 1})
        assert hear(talk)["session"]["sample_rate"] == RATE
        for start in range(0, len(TEXT), 7):
            say(talk, "input_text.append", text=TEXT[start : start + 7])
        first = hear(talk)
        assert first["type"] == "speech.audio.delta", "the first sentence is spoken although the text is not complete"
        say(talk, "input_text.done")
        rest, done = audio_until(talk, "speech.audio.done")
        pcm = base64.b64decode(first["audio"]) + rest
        body = {"model": "voice", "voice": "alloy", "input": TEXT, "response_format": "pcm"}
        whole = http.post("/v1/audio/speech", json=body).content
        heard = listen(http, np.frombuffer(pcm, "<i2").astype(np.float32) / 32_768)
    assert done["status"] == "completed"
    assert done["duration_s"] == round(len(pcm) / 2 / RATE, 3)
    assert abs(len(pcm) - len(whole)) < 0.1 * len(whole)
    assert word_errors(TEXT, heard) <= 2
    assert words(heard)[-1] == "river"


def test_the_documented_client_gets_its_speech(voice_server, tmp_path: Path):
    section = DOCUMENT.read_text(encoding="utf-8").partition("## WebSocket /v1/audio/speech/stream")[2]
    script = section.partition("```python\n")[2].partition("```")[0].replace(":8000", f":{voice_server.port}")
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert json.loads(ran.stdout)["status"] == "completed", ran.stderr
    with av.open(str(tmp_path / "speech.mp3")) as file:
        samples = np.concatenate([frame.to_ndarray().reshape(-1) for frame in file.decode(audio=0)])
    with httpx.Client(base_url=voice_server.url, timeout=120) as http:
        assert words(listen(http, samples))[-3:] == ["it", "is", "complete"]


def test_what_is_cancelled_stops_and_the_session_goes_on(two_api_servers):
    assert_nothing_is_held(two_api_servers)
    with talk_to(two_api_servers) as talk:
        say(talk, "input_text.append", text="A long sentence without an end " * 300)
        say(talk, "input_text.flush")
        assert hear(talk)["type"] == "speech.audio.delta"
        assert eventually(lambda: totals(two_api_servers)["requests_open"] == 2)
        say(talk, "response.cancel")
        _, done = audio_until(talk, "speech.audio.done")
        assert done["status"] == "cancelled"
        assert eventually(lambda: totals(two_api_servers)["requests_open"] == 0)
        say(talk, "input_text.append", text="One word. And two.")
        say(talk, "input_text.done")
        encoded, done = audio_until(talk, "speech.audio.done")
    assert encoded == spoken("One word.") + spoken("And two.")
    assert_nothing_is_held(two_api_servers)


def test_a_client_that_leaves_in_mid_audio_leaves_nothing_behind(two_api_servers):
    with talk_to(two_api_servers) as talk:
        say(talk, "input_text.append", text="A long sentence without an end " * 300)
        assert hear(talk)["type"] == "speech.audio.delta"
        talk.socket.shutdown(socket.SHUT_RDWR)
        assert_nothing_is_held(two_api_servers)


def test_any_api_server_tells_what_a_raw_answer_came_to(two_api_servers):
    body = {"model": "sim-voice", "input": "Hello.", "response_format": "pcm"}
    url = f"{two_api_servers.url}/v1/audio/speech"
    answer = httpx.post(url, json=body, headers={"x-request-id": "mine"})
    assert answer.headers["link"] == '</v1/audio/speech/mine>; rel="status"'
    told_by = set()

    def both_have_told() -> bool:
        with httpx.Client(base_url=two_api_servers.url) as client:
            told = client.get("/v1/audio/speech/mine").json()
            assert (told["status"], told["duration_s"]) == ("completed", round(len(answer.content) / 2 / 24_000, 3))
            page = client.get("/metrics").text
        told_by.add("0" if 'http_requests_open{process="api-server/0"}' in page else "1")
        return told_by == {"0", "1"}

    assert eventually(both_have_told)
    failing = httpx.post(url, json={**body, "input": "raise-in-code2wav:Hello."})
    assert failing.status_code == 500
    told = httpx.get(f"{url}/{failing.headers['x-request-id']}").json()
    assert (told["status"], told["error"]) == ("failed", failing.json()["error"])
    left = RawRequest(two_api_servers, "/v1/audio/speech", {**body, "input": "x" * 5_000}, "x-request-id: left")
    left.read_until(b"\r\n\r\n")
    assert httpx.get(f"{url}/left").json()["status"] == "in_progress"
    left.hang_up()
    assert eventually(lambda: httpx.get(f"{url}/left").json()["status"] == "cancelled")
