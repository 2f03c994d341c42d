"""Open WebUI's way of speaking: an answer cut into sentences, one small request each, all of them at once."""

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor

from tests.clients.hearing import assert_says
from tests.process.conftest import Server

SENTENCES = tuple(
    f"Number {number} is the next one."
    for number in ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
)
MAY_PASS = 2
"""By how many places an answer may come before or after its turn."""
NUM_ROUNDS = 3
"""One of them must be in order: this client's threads tell when an answer is complete, and on a busy machine late."""


def speak_all(server: Server) -> list[tuple[float, bytes]]:
    """When each answer was complete, and its mp3 file. All connections are open before the first request leaves."""
    connections = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=120) for _ in SENTENCES]
    for connection in connections:
        connection.connect()
    for connection, sentence in zip(connections, SENTENCES, strict=True):
        body = json.dumps({"model": "tts-1", "voice": "alloy", "input": sentence})
        connection.request("POST", "/v1/audio/speech", body, {"Content-Type": "application/json"})
    with ThreadPoolExecutor(len(connections)) as threads:
        return list(threads.map(_answer, connections))


def _answer(connection: http.client.HTTPConnection) -> tuple[float, bytes]:
    response = connection.getresponse()
    file, complete_s = response.read(), time.monotonic()
    assert response.status == 200, file
    connection.close()
    return complete_s, file


def largest_move(answers: list[tuple[float, bytes]]) -> int:
    """By how many places the answer that is most out of turn is so."""
    order = sorted(range(len(answers)), key=lambda index: answers[index][0])
    return max(abs(place - index) for place, index in enumerate(order))


def test_ten_requests_at_once_are_answered_whole_and_in_their_order(server: Server):
    rounds = [speak_all(server) for _ in range(NUM_ROUNDS)]
    moves = [largest_move(answers) for answers in rounds]
    assert min(moves) <= MAY_PASS, f"answers were out of turn by {moves} places"
    for sentence, (_, file) in zip(SENTENCES[::3], rounds[0][::3], strict=True):
        assert_says(server, file, sentence)
