"""A distribution as cumulative bucket counters, the form in which histograms travel in StatsReports.

In: single values. Out: Counters `<name>_bucket` with a label `le`, `<name>_sum`, `<name>_count`.
Does not know: what is measured.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from antiphon.messages.control import Counter

DURATION_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
SIZE_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


class Distribution:
    """Owns how many values fell between the ascending `bounds`, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        """Values so far."""
        return sum(self._counts)

    def observe(self, value: float) -> None:
        """Add one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def counters(self, name: str, labels: tuple[tuple[str, str], ...]) -> list[Counter]:
        """The distribution as counters of the histogram `name`."""
        bounds = (*map(str, self._bounds), "+Inf")
        buckets = zip(bounds, accumulate(self._counts), strict=True)
        return [
            *(Counter(f"{name}_bucket", (*labels, ("le", bound)), float(count)) for bound, count in buckets),
            Counter(f"{name}_sum", labels, self.sum),
            Counter(f"{name}_count", labels, float(self.count)),
        ]
