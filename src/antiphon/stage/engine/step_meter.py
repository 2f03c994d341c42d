"""What an engine's steps have cost: how many, how long, how large a batch.

In: one call per step. Out: sums and distributions from the start. Does not know: engines, requests.
"""

from antiphon.monitor.distribution import DURATION_BUCKETS_S, SIZE_BUCKETS, Distribution


class StepMeter:
    """Owns the counts of one engine's steps."""

    def __init__(self) -> None:
        self.durations = Distribution(DURATION_BUCKETS_S)
        self.batch_sizes = Distribution(SIZE_BUCKETS)

    def step(self, batch_size: int, duration_s: float) -> None:
        """One step is over; a batch of 0 (only input was taken in) is no batch."""
        self.durations.observe(duration_s)
        if batch_size:
            self.batch_sizes.observe(batch_size)

    @property
    def num_steps(self) -> int:
        """Steps so far."""
        return self.durations.count

    @property
    def busy_s(self) -> float:
        """Time in them."""
        return self.durations.sum
