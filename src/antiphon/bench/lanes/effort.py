"""How thoroughly the lanes are measured, and goals that are a figure.

In: nothing. Out: values. Does not know: how anything is measured.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from antiphon.bench.measures import Bound, Goal
from antiphon.errors import HandoffTimeoutError

_SIZES = (0, 8 << 10, 64 << 10, 1 << 20)
Cell = tuple[int, int, bool]
"""batch, row bytes, as text"""


@dataclass(frozen=True)
class Effort:
    """seconds: one round, about. shapes: stages and replicas of each. is_whole: every batch and payload of part a."""

    seconds: float = 2.0
    repeats: int = 3
    num_requests: int = 1000
    num_alone: int = 200
    num_streams: int = 200
    num_pings: int = 2000
    num_control: int = 5000
    num_paced: int = 100
    num_deltas: int = 2000
    part_s: float = 900.0
    shapes: tuple[tuple[int, int], ...] = ((1, 1), (1, 4), (3, 4))
    is_whole: bool = True

    def cells(self, num_stages: int, num_replicas: int) -> Iterator[Cell]:
        """What part a measures in a shape; not the whole: what the goals are about."""
        is_full = num_stages > 1 and num_replicas > 1
        sizes = _SIZES if num_stages > 1 else (0,)
        for batch in (1, 16):
            for size in sizes:
                for is_text in (True, False):
                    is_goal = (is_text or not size) and (batch > 1 if is_full else is_text)
                    if self.is_whole or is_goal:
                        yield batch, size, is_text


QUICK = Effort(
    seconds=0.5,
    repeats=1,
    num_requests=200,
    num_alone=50,
    num_streams=64,
    num_pings=300,
    num_control=1000,
    num_paced=30,
    num_deltas=300,
    part_s=240.0,
    shapes=((1, 1), (3, 4)),
    is_whole=False,
)


def at_least(figure: float) -> Goal:
    """Whatever the reference is."""
    return Goal(Bound.AT_LEAST, 0.0, figure)


def at_most(figure: float) -> Goal:
    """Whatever the reference is."""
    return Goal(Bound.AT_MOST, 0.0, figure)


class Deadline:
    """When a part must be over; for loops that the event loop cannot interrupt."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends_s = time.monotonic() + seconds

    def check(self, waits_for: str) -> None:
        """HandoffTimeoutError if it has passed."""
        if time.monotonic() > self._ends_s:
            raise HandoffTimeoutError(f"waited for {waits_for} until the part's {self._seconds:g} s were over")
