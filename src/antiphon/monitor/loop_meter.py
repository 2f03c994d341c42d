"""How busy an event loop is: its turns, the time in them, the longest.

In: the beginning and end of every turn. Out: Counters. Does not know: what a turn is for.
"""

import time
from collections.abc import Iterator

from antiphon.messages.control import Counter


class LoopMeter:
    """Owns the sums of one loop, and the longest turn since `close_window`."""

    def __init__(self) -> None:
        self._num_turns = 0
        self._busy_s = 0.0
        self._longest_s = 0.0
        self._since_s = self._began_s = time.monotonic()

    @property
    def uptime_s(self) -> float:
        """Since it is measured."""
        return time.monotonic() - self._since_s

    def turn_begins(self) -> None:
        """The loop has waited and looks for work."""
        self._began_s = time.monotonic()

    def turn_ends(self) -> None:
        """The loop is about to wait."""
        duration_s = time.monotonic() - self._began_s
        self._num_turns += 1
        self._busy_s += duration_s
        self._longest_s = max(self._longest_s, duration_s)

    def close_window(self) -> Iterator[Counter]:
        """Everything; the longest turn is counted anew from here."""
        longest_s, self._longest_s = self._longest_s, 0.0
        yield Counter("loop_busy_seconds_total", (), self._busy_s)
        yield Counter("loop_iterations_total", (), float(self._num_turns))
        yield Counter("loop_lag_s", (), longest_s)
