"""Event bytes and base64 in pieces."""

import base64
import json

import pytest

from antiphon.errors import StageError
from antiphon.server.http_errors import envelope
from antiphon.server.sse import HOLE, Base64Pieces, EventForm, error_event, event


def test_an_event_is_one_data_line_and_an_empty_line():
    encoded = event({"text": "two\nlines, ä"}).decode()
    assert encoded.startswith("data: ")
    assert encoded.endswith("\n\n")
    assert encoded.count("\n") == 2
    assert json.loads(encoded.removeprefix("data: ")) == {"text": "two\nlines, ä"}


@pytest.mark.parametrize(
    "text", ["", "plain", 'a "quoted\\" word', "two\nlines", "ä\x00\u2028\U0001f600", pytest.param(HOLE, id="hole")]
)
def test_a_filled_form_is_the_event_with_the_text_in_every_hole(text):
    form = EventForm({"id": 7, "content": HOLE, "audio": {"transcript": HOLE}, "usage": None})
    assert form.fill(text) == event({"id": 7, "content": text, "audio": {"transcript": text}, "usage": None})


def test_an_error_event_is_named_error_and_carries_the_envelope():
    first, second = error_event(envelope(StageError("bad", code="x"))).decode().splitlines()[:2]
    assert first == "event: error"
    data = json.loads(second.removeprefix("data: "))
    assert data["type"] == "error"
    assert data["error"] == {"message": "bad", "type": "server_error", "param": None, "code": "x"}


@pytest.mark.parametrize("sizes", [[1, 1, 1], [7, 5, 100, 1], [6, 12], [0, 0, 5]])
def test_base64_pieces_join_to_all_bytes_and_end_on_whole_samples(sizes):
    data = bytes(range(sum(sizes)))
    joiner, pieces, start = Base64Pieces(), [], 0
    for size in sizes:
        pieces.append(joiner.encode(data[start : start + size]))
        start += size
    assert all(len(base64.b64decode(piece)) % 2 == 0 for piece in pieces)
    assert base64.b64decode("".join([*pieces, joiner.finish()]), validate=True) == data
    assert joiner.finish() == ""
