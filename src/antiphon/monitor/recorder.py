"""The orchestrator's monitor: what its loop does, in windows of about a second. Off, it is NO_MONITOR and does nothing.

In: the beginning and end of every turn of the loop, and a function that looks at the host. Out: closed windows, for a
journal. Does not know: what a turn is for, files. It never raises into the loop and never waits in it.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from antiphon.monitor.faults import Faults
from antiphon.monitor.journal import Journal
from antiphon.monitor.windows import ClosedWindow, HostSnapshot, LoopWindow

_TICK_S = 0.05
_PUNCTUAL_S = 0.005
_MAX_LAGS = 1024
_DIGITS = 6


class LoopMonitor(Protocol):
    """What the orchestrator's loop calls. max_wait_s: it shall not wait longer than that in one turn."""

    max_wait_s: float

    def startup(self) -> None:
        """The loop is about to run."""

    def turn_begins(self) -> None:
        """The loop has waited and looks for work."""

    def turn_ends(self, num_request_messages: int, wait_s: float) -> None:
        """The loop is about to wait, at most `wait_s`. num_request_messages: handled and sent since the start."""

    def close(self) -> None:
        """The loop is over."""


class _NoMonitor:
    """The monitor that is off: it measures nothing and writes nothing."""

    max_wait_s = 3600.0

    def startup(self) -> None:
        """Nothing."""

    def turn_begins(self) -> None:
        """Nothing."""

    def turn_ends(self, num_request_messages: int, wait_s: float) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


NO_MONITOR: LoopMonitor = _NoMonitor()


class Recorder:
    """Owns the figures of the window that is open.

    look: what the host holds, asked as a window closes. The loop waits in ticks of 50 ms, so that a process that is
    kept from running shows as late even while nothing is to do.
    """

    max_wait_s = _TICK_S

    def __init__(self, window_s: float, look: Callable[[], HostSnapshot], journal: Journal, faults: Faults) -> None:
        self._window_s = window_s
        self._look = look
        self._journal = journal
        self._faults = faults
        self._num_messages = 0
        self._due_s = 0.0
        self._lags_s: deque[float] = deque(maxlen=_MAX_LAGS)
        self._opened_s = 0.0
        self._messages_before = self._num_idle = self._num_active = 0
        self._busy_s = self._late_s = self._longest_s = self._max_lag_s = 0.0
        self._turn_began_s = self._wait_s = self._turn_s = 0.0
        self._turn_ended_s = math.inf  # before the first turn nothing is late

    def startup(self) -> None:
        """Begin the first window."""
        with self._faults.kept_from_host("starting"):
            self._journal.startup()
        self._begin_window(time.monotonic())

    def turn_begins(self) -> None:
        """Measure how late the wait ended."""
        now_s = time.monotonic()
        late_s = now_s - self._turn_ended_s - self._wait_s
        lag_s = self._turn_s
        if late_s > 0.0:
            lag_s += late_s
            if late_s > _PUNCTUAL_S:
                self._late_s += late_s
        self._lags_s.append(lag_s)
        if lag_s > self._max_lag_s:
            self._max_lag_s = lag_s
        self._turn_began_s = now_s

    def turn_ends(self, num_request_messages: int, wait_s: float) -> None:
        """Measure the turn; close the window if it is over."""
        now_s = time.monotonic()
        turn_s = self._turn_s = now_s - self._turn_began_s
        self._busy_s += turn_s
        if turn_s > self._longest_s:
            self._longest_s = turn_s
        if num_request_messages != self._num_messages:
            self._num_active += 1
            self._num_messages = num_request_messages
        else:
            self._num_idle += 1
        self._wait_s = wait_s if wait_s > 0.0 else 0.0
        if now_s >= self._due_s:
            with self._faults.kept_from_host("closing a window"):
                self._close_window(now_s)
            self._begin_window(now_s)
            now_s = time.monotonic()
        self._turn_ended_s = now_s

    def close(self) -> None:
        """Close the last window and wait until everything is written, within the journal's deadline."""
        with self._faults.kept_from_host("ending"):
            self._close_window(time.monotonic())
            self._journal.close()

    def _begin_window(self, now_s: float) -> None:
        self._opened_s = now_s
        self._due_s = now_s + self._window_s
        self._messages_before = self._num_messages
        self._num_idle = self._num_active = 0
        self._busy_s = self._late_s = self._longest_s = self._max_lag_s = 0.0
        self._lags_s.clear()

    def _close_window(self, now_s: float) -> None:
        host = HostSnapshot()
        with self._faults.kept_from_host("looking at the orchestrator"):
            host = self._look()
        lags_s = sorted(self._lags_s)
        loop = LoopWindow(
            ended_unix_s=round(time.time(), 3),
            duration_s=round(now_s - self._opened_s, _DIGITS),
            loop_idle=self._num_idle,
            loop_active=self._num_active,
            busy_s=round(self._busy_s, _DIGITS),
            late_s=round(self._late_s, _DIGITS),
            longest_iteration_s=round(self._longest_s, _DIGITS),
            loop_lag_p50_s=round(lags_s[len(lags_s) // 2], _DIGITS) if lags_s else 0.0,
            loop_lag_max_s=round(self._max_lag_s, _DIGITS),
            request_messages=self._num_messages - self._messages_before,
            num_monitor_faults=self._faults.count,
        )
        self._journal.put(ClosedWindow(now_s, loop, host))
