"""Two benchmark files side by side: which differences are larger than the noise of the runs.

In: documents of `bench serve` or `bench sweep`. Out: Differences with bootstrap confidence intervals.
Does not know: how anything was measured, tables.

A point is what can be compared: a serve run, or the repeats of one arm at one rate. The bootstrap draws repeats, then
answers within each: with one repeat only the spread of its answers counts, which is less than runs differ by.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from antiphon.errors import ConfigError

_NUM_DRAWS = 1000
_SEED = 1
_CONFIDENCE = 0.95
_MIN_SAMPLES_OF_P99 = 100
STATISTICS = ("mean", "median", "p99")

Repeats = list[np.ndarray]
"""Per repeat: [num_answers] values of one metric."""


class _Run(msgspec.Struct, frozen=True):
    """What is read of a serve run."""

    values: dict[str, list[float]]
    per_request: dict[str, float] = {}


class _SweepRun(msgspec.Struct, frozen=True):
    arm: str
    rate_rps: float
    run: _Run | None = None


class _Document(msgspec.Struct, frozen=True):
    kind: str
    values: dict[str, list[float]] = {}
    per_request: dict[str, float] = {}
    runs: list[_SweepRun] = []


@dataclass(frozen=True)
class Measured:
    """One file: point -> metric -> repeats; point -> cost -> one figure per repeat."""

    metrics: dict[str, dict[str, Repeats]]
    costs: dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class Difference:
    """b against a. low, high: of b / a, with 95 % confidence; None where there is nothing to draw from."""

    point: str
    name: str
    statistic: str
    a: float
    b: float
    low: float | None
    high: float | None

    @property
    def ratio(self) -> float:
        """b / a; infinite if a is 0 and b is not."""
        if self.a:
            return self.b / self.a
        return float("inf") if self.b else 1.0

    @property
    def is_real(self) -> bool | None:
        """True if the interval leaves out 1; None without an interval."""
        return None if self.low is None or self.high is None else not self.low <= 1.0 <= self.high


def load_measured(path: Path) -> Measured:
    """ConfigError if the file is no document of `bench serve` or `bench sweep`."""
    try:
        document = msgspec.json.decode(path.read_bytes(), type=_Document)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            [f"cannot compare {path}: {error}; give a file that --out of bench serve or sweep wrote"]
        ) from error
    if document.kind == "serve":
        runs = [("run", _Run(document.values, document.per_request))]
    else:
        runs = [(f"{run.arm} at {run.rate_rps:g}/s", run.run) for run in document.runs if run.run is not None]
    measured = Measured({}, {})
    for point, run in runs:
        for name, values in run.values.items():
            measured.metrics.setdefault(point, {}).setdefault(name, []).append(np.array(values))
        for name, figure in run.per_request.items():
            measured.costs.setdefault(point, {}).setdefault(name, []).append(figure)
    return measured


def compare(a: Measured, b: Measured) -> list[Difference]:
    """Every metric and cost of every point that both have; ConfigError if they have none."""
    found = []
    for point in (point for point in a.metrics if point in b.metrics):
        ours, theirs = a.metrics[point], b.metrics[point]
        for name in (name for name in ours if name in theirs):
            found += [
                _difference(point, name, which, ours[name], theirs[name]) for which in _usable(ours, theirs, name)
            ]
        costs, other_costs = a.costs.get(point, {}), b.costs.get(point, {})
        for name in (name for name in costs if name in other_costs):
            pair = [[np.array([figure]) for figure in figures] for figures in (costs[name], other_costs[name])]
            found.append(_difference(point, name, "mean", *pair))
    if not found:
        raise ConfigError([f"the files have nothing in common: {', '.join(a.metrics)} and {', '.join(b.metrics)}"])
    return found


def _usable(ours: dict[str, Repeats], theirs: dict[str, Repeats], name: str) -> list[str]:
    fewest = min(sum(map(len, ours[name])), sum(map(len, theirs[name])))
    return [which for which in STATISTICS if which != "p99" or fewest >= _MIN_SAMPLES_OF_P99]


def _difference(point: str, name: str, which: str, a: Repeats, b: Repeats) -> Difference:
    figures = [_statistic(which, np.concatenate(repeats)) for repeats in (a, b)]
    low, high = None, None
    if all(sum(map(len, repeats)) > 1 for repeats in (a, b)):
        rng = np.random.default_rng(_SEED)
        drawn_a, drawn_b = (_draws(which, repeats, rng) for repeats in (a, b))
        tail = (1 - _CONFIDENCE) / 2
        if np.all(drawn_a > 0):
            low, high = (float(end) for end in np.quantile(drawn_b / drawn_a, [tail, 1 - tail]))
    return Difference(point, name, which, figures[0], figures[1], low, high)


def _draws(which: str, repeats: Repeats, rng: np.random.Generator) -> np.ndarray:
    """[_NUM_DRAWS] of the statistic, of as many repeats and answers as there are."""
    drawn = np.empty(_NUM_DRAWS)
    for index in range(_NUM_DRAWS):
        chosen = [repeats[number] for number in rng.integers(0, len(repeats), len(repeats))]
        drawn[index] = _statistic(which, np.concatenate([rng.choice(values, len(values)) for values in chosen]))
    return drawn


def _statistic(which: str, values: Sequence[float] | np.ndarray) -> float:
    match which:
        case "mean":
            return float(np.mean(values))
        case "median":
            return float(np.median(values))
        case _:
            return float(np.quantile(values, 0.99))
