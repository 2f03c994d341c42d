"""Spans of single requests, written by each process to a file of its own; off, nothing is measured or written.

In: spans. Out: one JSON line per span in the run directory. Does not know: stages, processes, trace viewers.
"""

import logging
import os
from pathlib import Path
from typing import Protocol

import msgspec

from antiphon.transport.address import RunDirectory

log = logging.getLogger(__name__)
MAX_FILE_BYTES = 16 << 20
"""About 150,000 spans; what comes after them is dropped."""
_ENDING = "trace"


class Span(msgspec.Struct, frozen=True, array_like=True):
    """What happened to a request in one process, between two moments of the monotonic clock."""

    request_id: str
    name: str
    start_s: float
    stop_s: float


class Trace(Protocol):
    """Takes the spans of one process."""

    def add(self, request_id: str, name: str, start_s: float, stop_s: float) -> None:
        """A span is over; one that never began (`start_s` 0) is none. Never raises, never waits for anybody."""

    def close(self) -> None:
        """Nothing more will be added."""


class NoTrace:
    """Tracing is off."""

    def add(self, request_id: str, name: str, start_s: float, stop_s: float) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class FileTrace:
    """Owns one file, which a process that is started again goes on writing. A failing write ends the trace.

    Every span is in the kernel's hands when `add` returns, so that it survives a `kill -9`.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_FILE_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._encoder = msgspec.json.Encoder()
        self._num_bytes = 0
        self._fd = -1

    def startup(self) -> None:
        """Open the file; OSError is logged, and nothing will be written."""
        try:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._num_bytes = os.fstat(self._fd).st_size
            if self._num_bytes:  # of an earlier start; its last line may have been cut off
                os.write(self._fd, b"\n")
        except OSError as error:
            log.error("no trace of this process: %s: %s", self._path, error.strerror)

    def add(self, request_id: str, name: str, start_s: float, stop_s: float) -> None:
        """See Trace.add."""
        if self._fd < 0 or not start_s:
            return
        line = self._encoder.encode(Span(request_id, name, start_s, stop_s)) + b"\n"
        self._num_bytes += len(line)
        if self._num_bytes > self._max_bytes:
            return self._give_up(f"it has reached {self._max_bytes >> 20} MiB")
        try:
            os.write(self._fd, line)
        except OSError as error:
            self._give_up(str(error))

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _give_up(self, reason: str) -> None:
        log.warning("the trace of this process ends here: %s: %s", self._path, reason)
        self.close()


def open_trace(run_directory: str, process: str, *, is_on: bool) -> Trace:
    """The trace of a process of that name."""
    if not is_on:
        return NoTrace()
    trace = FileTrace(RunDirectory(Path(run_directory)).file(process, _ENDING))
    trace.startup()
    return trace


def traced_processes(directory: RunDirectory) -> list[str]:
    """The names of all processes that have written a trace there."""
    return directory.names(_ENDING)


def read_spans(directory: RunDirectory, process: str) -> list[Span]:
    """What one process has written; a line that a kill has cut off is left out."""
    spans = []
    decoder = msgspec.json.Decoder(Span)
    with directory.file(process, _ENDING).open("rb") as lines:
        for line in lines:
            try:
                spans.append(decoder.decode(line))
            except msgspec.DecodeError:
                continue
    return spans
