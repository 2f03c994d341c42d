"""Two benchmark files side by side: which differences are larger than the noise of the runs.

In: documents of `bench serve` or `bench sweep`. Out: Differences with bootstrap confidence intervals.
Does not know: how anything was measured, tables.

A point is what can be compared: a serve run, or the repeats of one arm at one rate. The bootstrap draws repeats, then
answers within each: with one repeat only the spread of its answers counts, which is less than runs differ by.
"""

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
            found += _differences(point, name, _usable(ours[name], theirs[name]), ours[name], theirs[name])
        costs, other_costs = a.costs.get(point, {}), b.costs.get(point, {})
        for name in (name for name in costs if name in other_costs):
            pair = [[np.array([figure]) for figure in figures] for figures in (costs[name], other_costs[name])]
            found += _differences(point, name, STATISTICS[:1], *pair)
    if not found:
        raise ConfigError([f"the files have nothing in common: {', '.join(a.metrics)} and {', '.join(b.metrics)}"])
    return found


def _usable(ours: Repeats, theirs: Repeats) -> tuple[str, ...]:
    fewest = min(sum(map(len, ours)), sum(map(len, theirs)))
    return STATISTICS if fewest >= _MIN_SAMPLES_OF_P99 else STATISTICS[:-1]


def _differences(point: str, name: str, statistics: tuple[str, ...], a: Repeats, b: Repeats) -> list[Difference]:
    has_draws = all(sum(map(len, repeats)) > 1 for repeats in (a, b))
    rng = np.random.default_rng(_SEED)
    draws = [_draws(repeats, rng) for repeats in (a, b)] if has_draws else []
    found = []
    for which in statistics:
        ours, theirs = (float(_statistic(which, np.concatenate(repeats)[None])[0]) for repeats in (a, b))
        low, high = _interval(*(_statistic(which, drawn) for drawn in draws)) if has_draws else (None, None)
        found.append(Difference(point, name, which, ours, theirs, low, high))
    return found


def _draws(repeats: Repeats, rng: np.random.Generator) -> np.ndarray:
    """[_NUM_DRAWS, num_repeats * most answers]: each row is as many repeats, and as many answers of each, drawn."""
    most = max(map(len, repeats))
    lengths = np.array([len(values) for values in repeats])
    padded = np.array([np.resize(values, most) for values in repeats])
    chosen = np.repeat(rng.integers(0, len(repeats), (_NUM_DRAWS, len(repeats))), most, axis=1)
    places = (rng.random(chosen.shape) * lengths[chosen]).astype(np.intp)
    drawn: np.ndarray = padded[chosen, places]
    return drawn


def _interval(a: np.ndarray, b: np.ndarray) -> tuple[float | None, float | None]:
    """Of b / a; none where a draw of a is 0."""
    if not np.all(a > 0):
        return None, None
    low, high = np.quantile(b / a, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    return float(low), float(high)


def _statistic(which: str, drawn: np.ndarray) -> np.ndarray:
    """[n, m] -> [n]."""
    match which:
        case "mean":
            return np.asarray(drawn.mean(axis=1))
        case "median":
            return np.asarray(np.median(drawn, axis=1))
        case _:
            return np.asarray(np.quantile(drawn, 0.99, axis=1))
