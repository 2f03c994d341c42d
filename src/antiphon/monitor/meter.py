"""A counter that is seen about once a second, as a rate between two sightings.

In: values and when they were received. Out: a rate, and the value at a moment near by. Does not know: what is counted.
"""

REPORT_S = 1.0
"""Processes report no oftener than that: two reports that come closer have been held up on the way."""


class Meter:
    """Owns the last two sightings of one counter. A value that falls means that its process has started again."""

    def __init__(self) -> None:
        self._received_s = 0.0
        self._value = 0.0
        self._is_new = True
        self.per_s = 0.0
        """The rate between the last two sightings; a first sighting counts from `since_s`, at least 1 s."""
        self.has_restarted = False
        """True if the last sighting was below the one before."""

    @property
    def received_s(self) -> float:
        """When the last sighting was."""
        return self._received_s

    @property
    def value(self) -> float:
        """The last value."""
        return self._value

    def see(self, received_s: float, value: float, since_s: float) -> None:
        """Take in a sighting; one that was taken in before changes nothing."""
        if received_s == self._received_s:
            self.has_restarted = False
            return
        before_s = since_s if self._is_new else self._received_s
        self.has_restarted = value < self._value
        counted = value if self.has_restarted else value - self._value
        self.per_s = counted / max(REPORT_S, received_s - before_s)
        self._received_s, self._value, self._is_new = received_s, value, False

    def at(self, time_s: float) -> float:
        """The value at a moment up to the last sighting, by the last rate."""
        return self._value - self.per_s * max(0.0, self._received_s - time_s)
