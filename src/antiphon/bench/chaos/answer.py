"""What has come of one answer, held against what it must be; and how a request has ended.

In: pieces of text and audio, or the body of an HTTP answer. Out: whether they are right so far, an Outcome.
Does not know: sockets, processes, who made the answer.
"""

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from antiphon.bench.chaos.actions import Form
from antiphon.errors import StageError

_decode = msgspec.json.Decoder().decode
Json = dict[str, object]
CONNECTION_LOST = "connection_lost"
"""The reason of a failure without an error: the server has hung up."""


class End(StrEnum):
    """How a request ended, seen from its client. LOST: it had no end within its deadline."""

    FINISHED = "finished"
    FAILED = "failed"
    ABORTED = "aborted"
    LOST = "lost"


class Outcome(msgspec.Struct, frozen=True):
    """One request's end. reason: an error's code, or what the client did. Times are seconds of the run.

    num_bytes: how much text and audio had come.
    """

    number: int
    end: End
    reason: str = ""
    message: str = ""
    is_wrong: bool = False
    num_bytes: int = 0
    began_s: float = 0.0
    ended_s: float = 0.0


@dataclass(frozen=True)
class Expected:
    """The whole right answer; None where nobody knows it."""

    text: str | None
    pcm: bytes | None


@dataclass
class Answer:
    """Owns what has come so far. `is_complete`: the last word has been said. `error_code`: it was an error."""

    expected: Expected
    text: str = ""
    pcm: bytearray = field(default_factory=bytearray)
    is_complete: bool = False
    error_code: str = ""
    error_message: str = ""

    @property
    def is_wrong(self) -> bool:
        """True if something came that does not belong there, or a complete answer misses something."""
        return self._differs(self.text, self.expected.text) or self._differs(bytes(self.pcm), self.expected.pcm)

    def _differs(self, got: str | bytes, right: str | bytes | None) -> bool:
        if right is None:
            return False
        return got != right if self.is_complete else got != right[: len(got)]

    def read_body(self, form: Form, body: bytes, *, ended: bool) -> None:
        """Take in an HTTP body with status 200, or what has come of it."""
        match form:
            case Form.CHAT | Form.SPOKEN_CHAT:
                if ended:
                    self._read_completion(_decode(body))
            case Form.SPEECH_BYTES:
                self.pcm += body
                self.is_complete = ended
            case Form.CHAT_EVENTS | Form.SPOKEN_CHAT_EVENTS | Form.SPEECH_EVENTS:
                encoded: list[str] = []
                for event in _events(body):
                    self._read_event(event, encoded)
                self.pcm += _from_base64("".join(encoded))

    def read_error(self, body: bytes) -> None:
        """Take in the envelope of an answer whose status is an error's."""
        try:
            self._fail(_decode(body)["error"])
        except (msgspec.DecodeError, KeyError, TypeError):
            self.error_code, self.error_message = "no_envelope", repr(body[:200])

    def _read_completion(self, completion: dict[str, list[dict[str, Json]]]) -> None:
        message = completion["choices"][0]["message"]
        self.text = str(message["content"])
        audio = message.get("audio")
        if isinstance(audio, dict):
            self.pcm += _from_base64(audio["data"])
        self.is_complete = True

    def _read_event(self, event: bytes, encoded: list[str]) -> None:
        data = next((line[6:] for line in event.split(b"\n") if line.startswith(b"data: ")), b"")
        if data == b"[DONE]":
            self.is_complete = True
            return
        value = _decode(data)
        match value:
            case {"error": error}:
                self._fail(error)
            case {"type": "speech.audio.delta", "audio": audio}:
                encoded.append(audio)
            case {"type": "speech.audio.done"}:
                self.is_complete = True
            case {"choices": [{"delta": delta}]}:
                self.text += delta.get("content") or ""
                encoded.append(delta.get("audio", {}).get("data") or "")
            case _:
                raise StageError(f"an event that nobody has told of: {data[:200]!r}")

    def _fail(self, error: dict[str, str]) -> None:
        self.error_code, self.error_message = error["code"], error["message"]


def _events(body: bytes) -> Iterator[bytes]:
    """The events that are complete."""
    *events, _rest = body.split(b"\n\n")
    yield from events


def _from_base64(encoded: str) -> bytes:
    """Every piece but the last is a whole number of groups, so any prefix of pieces can be decoded."""
    return base64.b64decode(encoded, validate=True)
