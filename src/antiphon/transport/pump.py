"""A thread that sends what waits in lines as their peers make room, so that who sends need not wait or come back.

In: lines that something waits in. Out: bytes on their sockets. Does not know: messages.
"""

import os
import select
import threading
from contextlib import ExitStack, suppress

from antiphon.transport.line import Line

_RETRY_MS = 20
_COUNTER_BYTES = 8


class Pump:
    """Owns the thread, from the first line that it is given until `close`, and the set of lines that wait."""

    def __init__(self) -> None:
        self._lines: set[Line] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake_fd = -1
        self._is_closing = False

    def add(self, line: Line) -> None:
        """Something waits in this line."""
        with self._lock:
            if line in self._lines:
                return
            if self._thread is None:
                self._start()
            self._lines.add(line)
        self._wake()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="pump", daemon=True)
        with suppress(OSError):  # no descriptor left: it looks by itself every _RETRY_MS
            self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        with ExitStack() as opened:
            opened.callback(self._close_wake_fd)
            thread.start()
            opened.pop_all()
        self._thread = thread

    def _wake(self) -> None:
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def _close_wake_fd(self) -> None:
        if self._wake_fd >= 0:
            os.close(self._wake_fd)
            self._wake_fd = -1

    def close(self) -> None:
        """End the thread; what waits stays in its line."""
        if self._thread is not None:
            self._is_closing = True
            self._wake()
            self._thread.join()
            self._close_wake_fd()
            self._thread = None

    def _run(self) -> None:
        while not self._is_closing:
            with self._lock:
                lines = list(self._lines)
            self._wait(lines)
            for line in lines:
                with self._lock:  # what begins to wait from here on is told anew
                    self._lines.discard(line)
                if line.flush():
                    with self._lock:
                        self._lines.add(line)

    def _wait(self, lines: list[Line]) -> None:
        """Until one has room; those without a connection are tried again soon."""
        poller = select.poll()
        if self._wake_fd >= 0:
            poller.register(self._wake_fd, select.POLLIN)
        fds = [line.fileno() for line in lines]
        for fd in fds:
            if fd >= 0:
                poller.register(fd, select.POLLOUT)
        for fd, _ in poller.poll(_RETRY_MS if -1 in (*fds, self._wake_fd) else None):
            if fd == self._wake_fd:
                os.read(fd, _COUNTER_BYTES)
