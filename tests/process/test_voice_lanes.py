"""The three lanes of a running voice server, by the counters it has kept from the start."""

import socket

import httpx
import pytest

from antiphon.messages.control import MAX_MESSAGE_BYTES
from tests.process.conftest import Server
from tests.process.metrics_page import assert_nothing_is_held, metric

FIVE_WORDS = "The sea is very deep."
FIVE_HUNDRED_WORDS = " ".join([FIVE_WORDS] * 100)
ONE_PART = " ".join([FIVE_WORDS] * 40)
"""As much as one request speaks: longer texts are spoken by several."""
STAGES_OF_SPEECH = 2
MAX_MESSAGES_PER_STAGE = 6


@pytest.fixture(scope="module")
def http(voice_server):
    with httpx.Client(base_url=voice_server.url, timeout=120) as client:
        yield client


def settled(voice_server: Server) -> float:
    """The count of control messages about requests, once everything has reported that nothing is open."""
    assert_nothing_is_held(voice_server)
    return metric(voice_server, "request_messages_total")[""]


def aborted(voice_server: Server) -> float:
    """How many requests have ended because their client left."""
    return sum(
        count for labels, count in metric(voice_server, "requests_total").items() if 'outcome="aborted"' in labels
    )


def speak(http: httpx.Client, text: str) -> bytes:
    response = http.post("/v1/audio/speech", json={"model": "voice", "input": text, "response_format": "pcm"})
    assert response.status_code == 200, response.text
    return response.content


def test_control_messages_depend_on_stages_and_not_on_the_length_of_the_input(voice_server, http):
    before = settled(voice_server)
    speak(http, FIVE_WORDS)
    between = settled(voice_server)
    speak(http, ONE_PART)
    after = settled(voice_server)
    assert between - before == after - between
    assert 0 < between - before <= MAX_MESSAGES_PER_STAGE * STAGES_OF_SPEECH


def test_a_transcription_of_one_stage_keeps_to_six_messages(voice_server, http):
    wav = http.post("/v1/audio/speech", json={"model": "voice", "input": FIVE_WORDS, "response_format": "wav"}).content
    before = settled(voice_server)
    answer = http.post("/v1/audio/transcriptions", data={"model": "voice"}, files={"file": wav})
    assert answer.status_code == 200, answer.text
    assert 0 < settled(voice_server) - before <= MAX_MESSAGES_PER_STAGE


def test_no_control_message_is_large_whatever_the_input(voice_server, http):
    speak(http, FIVE_HUNDRED_WORDS)
    settled(voice_server)
    sizes = {
        labels: size
        for labels, size in metric(voice_server, "lane_max_message_bytes").items()
        if 'lane="control"' in labels or 'lane="control_out"' in labels
    }
    assert len(sizes) >= 2 * 6
    assert max(sizes.values()) <= MAX_MESSAGE_BYTES


def test_a_client_that_disconnects_in_mid_stream_stops_every_stage_and_the_next_is_served(voice_server, http):
    settled(voice_server)
    before = aborted(voice_server)
    body = f'{{"model":"voice","input":"{" ".join([FIVE_HUNDRED_WORDS] * 5)}","response_format":"pcm"}}'.encode()
    head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", voice_server.port)) as connection:
        connection.sendall(head % len(body) + body)
        assert b"200 OK" in connection.recv(65536)
    assert len(speak(http, FIVE_WORDS)) > 24_000
    settled(voice_server)
    assert aborted(voice_server) > before, "the request of the client that left ran on to its end"


def test_text_only_chat_binds_the_thinker_alone(voice_server, http):
    settled(voice_server)
    before = metric(voice_server, "steps_total")
    body = {"model": "voice", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    settled(voice_server)
    moved = {labels for labels, steps in metric(voice_server, "steps_total").items() if steps > before[labels]}
    assert moved == {'{replica="thinker/0",stage="thinker"}'}
