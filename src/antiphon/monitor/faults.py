"""What goes wrong in the monitor stays in the monitor: it is logged once per kind and counted.

In: pieces of the monitor's work. Out: their faults as a number. Does not know: what the work is.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


class Faults:
    """Owns the count of faults; both threads of the monitor report here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logged: set[str] = set()
        self._count = 0

    @property
    def count(self) -> int:
        """Faults so far."""
        return self._count

    @contextmanager
    def kept_from_host(self, doing: str) -> Iterator[None]:
        """Around a piece of work whose fault shall not reach the host. doing: what is logged, and the fault's kind."""
        try:
            yield
        except Exception as error:  # the monitor's edge: whatever it is, serving goes on
            self.add(doing, error)

    def add(self, doing: str, error: Exception | str) -> None:
        """Count a fault; log it if it is the first of its kind."""
        with self._lock:
            self._count += 1
            is_first = doing not in self._logged
            self._logged.add(doing)
        if is_first:
            log.error("the monitor failed at %s: %s; serving goes on, more of this is only counted", doing, error)
