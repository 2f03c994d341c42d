"""Open WebUI's way of speaking: an answer cut into sentences, one small request each, all of them at once."""

import itertools

from tests.clients.hearing import assert_says
from tests.process.conftest import Server, eventually
from tests.process.raw_http import RawRequest

SENTENCES = tuple(
    f"Number {number} is the next one."
    for number in ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
)
MAY_PASS = 2
"""By how many places an answer may come before or after its turn."""
NUM_ROUNDS = 3
"""One of them must be in order: on a busy machine the first may leave before the last has come."""
LAST_CHUNK = b"\r\n0\r\n\r\n"


def speak_all(server: Server) -> list[tuple[int, bytes]]:
    """At which look each answer was complete, and its mp3 file. One thread sends and reads all, in their order."""
    requests = [
        RawRequest(server, "/v1/audio/speech", {"model": "tts-1", "voice": "alloy", "input": sentence, "seed": 1})
        for sentence in SENTENCES
    ]
    complete_at: dict[int, int] = {}
    looks = itertools.count()

    def are_complete() -> bool:
        look = next(looks)
        for index, request in enumerate(requests):
            if index not in complete_at and request.has_answer():
                assert request.read_more(), request.received
                if request.received.endswith(LAST_CHUNK):
                    complete_at[index] = look
        return len(complete_at) == len(requests)

    assert eventually(are_complete, 120.0)
    return [(complete_at[index], file_of(request)) for index, request in enumerate(requests)]


def file_of(request: RawRequest) -> bytes:
    """The body of a whole answer."""
    request.hang_up()
    head, _, body = request.received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), request.received
    file = b""
    while body != LAST_CHUNK[2:]:
        size, _, body = body.partition(b"\r\n")
        file, body = file + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return file


def largest_move(answers: list[tuple[int, bytes]]) -> int:
    """By how many places the answer that is most out of turn is so."""
    order = sorted(range(len(answers)), key=lambda index: answers[index][0])
    return max(abs(place - index) for place, index in enumerate(order))


def test_ten_requests_at_once_are_answered_whole_and_in_their_order(server: Server):
    rounds = [speak_all(server) for _ in range(NUM_ROUNDS)]
    moves = [largest_move(answers) for answers in rounds]
    assert min(moves) <= MAY_PASS, f"answers were out of turn by {moves} places"
    for sentence, (_, file) in zip(SENTENCES[::3], rounds[0][::3], strict=True):
        assert_says(server, file, sentence)
