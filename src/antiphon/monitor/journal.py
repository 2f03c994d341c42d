"""Writes the monitor's windows in a thread of its own, so that no disk holds up the loop.

In: closed windows, through a bounded queue. Out: the JSON-lines file as they close; at the end the columnar file and a
summary in the log. Does not know: the loop, what figures mean.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from antiphon.monitor.columns import convert
from antiphon.monitor.faults import Faults
from antiphon.monitor.lines import LinesWriter
from antiphon.monitor.summary import summary_lines
from antiphon.monitor.windows import ClosedWindow, Header, Window

log = logging.getLogger(__name__)
_MAX_QUEUED = 256


class Journal:
    """Owns the writing thread and its queue. write_deadline_s: how long `close` waits for the files."""

    def __init__(
        self,
        target: Path,
        window_s: float,
        sample: Callable[[ClosedWindow], Window],
        faults: Faults,
        *,
        write_deadline_s: float,
    ) -> None:
        self._writer = LinesWriter(target, Header(window_s))
        self._sample = sample
        self._faults = faults
        self._write_deadline_s = write_deadline_s
        self._queue: queue.Queue[ClosedWindow | None] = queue.Queue(_MAX_QUEUED)
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)

    def startup(self) -> None:
        """Start the thread. The file is made with the first window."""
        self._thread.start()

    def put(self, closed: ClosedWindow) -> None:
        """Hand a window over; it is lost and counted if the disk is so slow that the queue is full. Never waits."""
        try:
            self._queue.put_nowait(closed)
        except queue.Full:
            self._faults.add("writing in time", f"{_MAX_QUEUED} windows wait for the disk; this one is lost")

    def close(self) -> None:
        """Write the columnar file; give up waiting for it after the deadline. The lines stay in that case."""
        deadline_s = time.monotonic() + self._write_deadline_s
        try:
            self._queue.put(None, timeout=self._write_deadline_s)
        except queue.Full:
            self._queue.get_nowait()  # the end matters more than one more window
            self._queue.put_nowait(None)
        self._thread.join(max(0.0, deadline_s - time.monotonic()))
        if self._thread.is_alive():
            late = f"not done in {self._write_deadline_s:g} s (monitor.write_s); `antiphon monitor convert` does it"
            self._faults.add("writing the columnar file", late)

    def _run(self) -> None:
        while (closed := self._queue.get()) is not None:
            with self._faults.kept_from_host("sampling"):
                window = Window(closed.loop, {}, {})
                try:
                    window = self._sample(closed)
                finally:
                    self._write(window)
        with self._faults.kept_from_host("writing the columnar file"):
            self._finish()

    def _write(self, window: Window) -> None:
        with self._faults.kept_from_host(f"writing {self._writer.path}"):
            self._writer.write(window)

    def _finish(self) -> None:
        """The lines become the columnar file, and go once it is there."""
        if not self._writer.is_open:
            raise OSError(f"{self._writer.path} could not be written, so there is nothing to make it from")
        target = self._writer.target
        spool = convert(self._writer.path, target)
        try:
            for line in summary_lines(spool):
                log.info("%s", line)
        finally:
            spool.close()
        self._writer.path.unlink()
        self._writer.close()
        faults = f"; the monitor failed {self._faults.count} times, see above" if self._faults.count else ""
        log.info("the monitor's windows are in %s%s", target, faults)
