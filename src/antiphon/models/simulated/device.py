"""A simulated GPU: it has one step at a time, does nothing, and is ready at the moment it was told.

In: when a step ends. Out: whether it has ended, and a descriptor that becomes readable then.
Does not know: what the step makes.
"""

import time

from antiphon.models.simulated.alarm import Alarm
from antiphon.models.simulated.step_clock import sleep_until

_SHORT_S = 0.001


class SimulatedDevice:
    """Owns the alarm, and the end of the step that runs."""

    def __init__(self) -> None:
        self._alarm = Alarm()
        self._end_s = 0.0

    def startup(self) -> None:
        """Make the descriptor."""
        self._alarm.startup()

    def begin(self, end_s: float) -> None:
        """Work until then (time.monotonic). An end within a millisecond is waited for: it is not worth a wake-up."""
        self._end_s = end_s
        if end_s - time.monotonic() > _SHORT_S:
            self._alarm.set(end_s)
        else:
            sleep_until(end_s)

    def fileno(self) -> int:
        """Readable when the step is over, until `finish`."""
        return self._alarm.fileno()

    def is_over(self) -> bool:
        """True when the step has had its time."""
        return time.monotonic() >= self._end_s

    def finish(self) -> None:
        """Return when the step is over; nobody is woken for it any more."""
        sleep_until(self._end_s)
        self._alarm.clear()

    def close(self) -> None:
        """Give the descriptor back."""
        self._alarm.close()
