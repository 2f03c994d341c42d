"""What a benchmark has measured, as values: distributions, and rows that hold our figure against a reference.

In: numbers. Out: percentiles, ratios, whether a goal is met. Does not know: how anything was measured.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

_MIN_SAMPLES_OF_P99 = 100
_PERCENTILES = (90, 95, 99)


class Bound(StrEnum):
    """Which way a goal looks."""

    AT_MOST = "at most"
    AT_LEAST = "at least"


@dataclass(frozen=True)
class Goal:
    """ours is to be at most (at least) `factor` x the reference + `plus`, in the row's unit.

    factor 0: a figure of its own, whatever the reference.
    """

    bound: Bound
    factor: float
    plus: float = 0.0

    def limit(self, reference: float) -> float:
        """The worst figure that meets the goal."""
        return self.factor * reference + self.plus

    def is_met(self, ours: float, reference: float) -> bool:
        """True if `ours` is not beyond the limit."""
        limit = self.limit(reference)
        return ours <= limit if self.bound is Bound.AT_MOST else ours >= limit

    def describe(self, unit: str) -> str:
        """`at most 1.5 x + 15 ms`; `at least 200000 /s`."""
        if not self.factor:
            return f"{self.bound} {self.plus:.10g} {unit}"
        plus = f" + {self.plus:g} {unit}" if self.plus else ""
        return f"{self.bound} {self.factor:g} x{plus}"


@dataclass(frozen=True)
class Row:
    """One line of the table: two medians in the same unit, and what is wanted of them (None: context only)."""

    measure: str
    unit: str
    ours: float
    reference: float
    goal: Goal | None = None

    @property
    def ratio(self) -> float:
        """ours / reference; infinite if the reference is 0."""
        return self.ours / self.reference if self.reference else float("inf")

    @property
    def is_met(self) -> bool | None:
        """None for a row without a goal."""
        return None if self.goal is None else self.goal.is_met(self.ours, self.reference)


@dataclass(frozen=True)
class Sample:
    """One measured piece of work; `amount` is seconds of audio or tokens, cpu_s is of all processes that took part."""

    wall_s: float
    cpu_s: float
    amount: float

    @property
    def per_wall_s(self) -> float:
        """Work done per second."""
        return self.amount / self.wall_s

    @property
    def per_cpu_s(self) -> float:
        """Work done per second of one core; infinite if it was too short for the clock of /proc."""
        return self.amount / self.cpu_s if self.cpu_s else float("inf")


def median_of(values: Sequence[float]) -> float:
    """The median; ValueError if there are no values."""
    return statistics.median(values)


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear interpolation between the two nearest ranks, as numpy's default; ValueError if there are no values."""
    if not values:
        raise ValueError("a percentile of nothing; measure at least once")
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def distribution(values: Sequence[float]) -> dict[str, float]:
    """n, mean, median, p90, p95, and p99 if there are at least 100 values to take it from."""
    summary = {"n": float(len(values)), "mean": statistics.fmean(values), "median": median_of(values)}
    for percent in _PERCENTILES:
        if percent < 99 or len(values) >= _MIN_SAMPLES_OF_P99:
            summary[f"p{percent}"] = percentile(values, percent)
    return summary
