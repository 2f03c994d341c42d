"""How many requests per second come to their end while there is work.

In: begins and ends of requests. Out: a rate. Does not know: which requests, or who waits.
"""

import time
from collections import deque

_WINDOW = 64


class ServiceRate:
    """Owns a clock that stands still while nothing runs, and its times at the last 64 ends."""

    def __init__(self) -> None:
        self._num_running = 0
        self._busy_s = 0.0
        self._busy_since_s = 0.0
        self._ends_s: deque[float] = deque([0.0], maxlen=_WINDOW + 1)

    def begins(self) -> None:
        """One more request runs."""
        if not self._num_running:
            self._busy_since_s = time.monotonic()
        self._num_running += 1

    def ends(self) -> None:
        """One request less runs."""
        self._ends_s.append(self._now_s())
        self._num_running -= 1
        if not self._num_running:
            self._busy_s = self._ends_s[-1]

    def per_s(self) -> float:
        """Ends per second of work, over the last 64 of them; 0 if there has been none."""
        return (len(self._ends_s) - 1) / max(1e-3, self._now_s() - self._ends_s[0])

    def _now_s(self) -> float:
        return self._busy_s + (time.monotonic() - self._busy_since_s if self._num_running else 0.0)
