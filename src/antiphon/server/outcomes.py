"""How the speech requests of this server went, for clients of raw audio, which has no place for an end or an error.

In: what a request comes to, as it comes to it. Out: the same, to whoever asks any api-server by the request's id.
Does not know: HTTP, how audio is made.
"""

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import structs

from antiphon.errors import AntiphonError, ReplicaDiedError
from antiphon.ids import RequestId
from antiphon.messages.client import Usage
from antiphon.server.edge import RequestIds
from antiphon.server.http_errors import envelope, internal_envelope
from antiphon.transport.address import RunDirectory

_log = logging.getLogger(__name__)
_ENDING, _OLDER_ENDING = "outcomes", "outcomes_older"
_MAX_LINES = 4_096
_KEPT_S = 3_600.0


class Status(StrEnum):
    """How far a request is. CANCELLED: its client hung up before the end."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Outcome(msgspec.Struct, frozen=True):
    """What one request has come to. duration_s: of the audio that its stages made; usage: None unless it is complete.

    at_s: when this was written, in seconds since 1970; pid: by which process.
    """

    own_id: str
    shown_id: str
    status: Status
    at_s: float
    pid: int
    usage: dict[str, int] | None = None
    duration_s: float = 0.0
    error: dict[str, str | None] | None = None

    @property
    def answer(self) -> dict[str, object]:
        """What a client that asks is told."""
        return {
            "id": self.shown_id,
            "object": "audio.speech",
            "status": self.status,
            "usage": self.usage,
            "duration_s": self.duration_s,
            "error": self.error,
        }


@dataclass
class Made:
    """What a running request has made so far; its handler keeps it up to date."""

    usage: Usage = Usage()
    duration_s: float = 0.0


class OutcomeLog:
    """Owns the files in which one api-server writes what its requests come to, a line when they begin and at the end.

    Every api-server of a run directory reads all of them: it does not matter which one is asked. A file that has 4,096
    lines takes the place of the one before it, so the last 2,048 requests of an api-server are known, for an hour. One
    that was in progress when its api-server died has failed.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._path = RunDirectory(directory).file(name, _ENDING)
        self._older_path = RunDirectory(directory).file(name, _OLDER_ENDING)
        self._file: BinaryIO | None = None
        self._num_lines = 0

    @contextmanager
    def following(self, ids: RequestIds) -> Iterator[Made]:
        """The block is one request: it is in progress until the block ends, and has come to what ended the block."""
        made = Made()
        self._write(Outcome(ids.own, ids.shown, Status.IN_PROGRESS, time.time(), os.getpid()))
        status, error = Status.COMPLETED, None
        try:
            yield made
        except BaseException as raised:
            status, error = _reason(raised, ids.own)
            raise
        finally:
            usage = usage_of(made.usage) if status is Status.COMPLETED else None
            duration_s = round(made.duration_s, 3)
            self._write(Outcome(ids.own, ids.shown, status, time.time(), os.getpid(), usage, duration_s, error))

    def find(self, wanted_id: str) -> Outcome | None:
        """The newest of what is known of a request by either of its ids. Reads files: call it off the event loop."""
        texts = [text for path in self._paths() if (text := _read(path))]
        for field in ("own_id", "shown_id"):  # ours first: no client can take it from another
            found = [outcome for text in texts if (outcome := _last_line(text, field, wanted_id))]
            if found:
                return _as_of_now(max(found, key=lambda outcome: outcome.at_s))
        return None

    def _paths(self) -> Iterator[Path]:
        for ending in (_OLDER_ENDING, _ENDING):
            yield from self._directory.glob(f"*.{ending}")

    def _write(self, outcome: Outcome) -> None:
        try:
            if self._file is None or self._num_lines >= _MAX_LINES:
                self._file = self._open_next()
            self._file.write(msgspec.json.encode(outcome) + b"\n")
            self._num_lines += 1
        except OSError as error:  # a full disk: the request itself does not need it
            _log.warning("req=%s: what it came to is not written down: %s", outcome.own_id, error.strerror)

    def _open_next(self) -> BinaryIO:
        if self._file is not None:
            self._file.close()
            self._path.replace(self._older_path)
        self._num_lines = 0
        return self._path.open("ab", buffering=0)


def usage_of(usage: Usage) -> dict[str, int]:
    """What was counted, as OpenAI's clients read it."""
    return {
        "input_tokens": usage.num_input_tokens,
        "output_tokens": usage.num_output_tokens,
        "total_tokens": usage.num_input_tokens + usage.num_output_tokens,
    }


def _reason(raised: BaseException, request_id: RequestId) -> tuple[Status, dict[str, str | None] | None]:
    match raised:
        case AntiphonError():
            return Status.FAILED, envelope(raised)["error"]
        case GeneratorExit() | asyncio.CancelledError():
            return Status.CANCELLED, None
        case _:
            return Status.FAILED, internal_envelope(request_id)["error"]


def _as_of_now(outcome: Outcome) -> Outcome | None:
    if outcome.status is not Status.IN_PROGRESS:
        return outcome if time.time() - outcome.at_s < _KEPT_S else None
    try:
        os.kill(outcome.pid, 0)
    except ProcessLookupError:
        error = ReplicaDiedError(f"{outcome.own_id}: the api-server that served it has died; try again")
        return structs.replace(outcome, status=Status.FAILED, error=envelope(error)["error"])
    return outcome


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # a newer file has just taken its place
        return b""


def _last_line(text: bytes, field: str, wanted_id: str) -> Outcome | None:
    """The last whole line whose `field` is `wanted_id`."""
    place = text.rfind(msgspec.json.encode({field: wanted_id})[1:-1])
    end = text.find(b"\n", place)
    if place < 0 or end < 0:
        return None
    return msgspec.json.decode(text[text.rfind(b"\n", 0, place) + 1 : end], type=Outcome)
