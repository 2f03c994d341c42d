"""The benchmark's report: a table for people, JSON for comparing runs.

In: rows and distributions. Out: rich's table, a JSON document with the machine's fingerprint.
Does not know: how anything was measured.
"""

import os
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
from rich.table import Table

from antiphon import __version__, env
from antiphon.bench.measures import Row, distribution

_PACKAGES = ("hibari-tts", "onnxruntime", "xllamacpp", "numpy", "pyzmq", "torch", "transformers", "uvicorn", "uvloop")
Json = dict[str, object]


@dataclass(frozen=True)
class Report:
    """What one run has measured. distributions: measure -> all its values, in the unit that the name ends in."""

    rows: tuple[Row, ...]
    distributions: dict[str, list[float]]
    fingerprint: Json = field(default_factory=dict)

    @property
    def num_missed(self) -> int:
        """Rows whose goal is not met."""
        return sum(row.is_met is False for row in self.rows)


def fingerprint() -> Json:
    """Where and when this runs; the load average tells whether the machine was busy already."""
    return {
        "antiphon": __version__,
        "cores": env.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: _version(name) for name in _PACKAGES},
        "load_average": list(os.getloadavg()),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def as_table(rows: Iterable[Row], title: str) -> Table:
    """measure, ours, reference, ratio, goal, met."""
    table = Table(title=title, title_justify="left")
    for column in ("measure", "ours", "reference", "ratio", "goal", "met"):
        table.add_column(column, justify="left" if column in ("measure", "goal") else "right", no_wrap=True)
    for row in rows:
        goal = row.goal.describe(row.unit) if row.goal else ""
        reference = f"{_figure(row.reference)} {row.unit}"
        table.add_row(row.measure, _figure(row.ours), reference, f"{row.ratio:.2f}", goal, _MET[row.is_met])
    return table


def as_json(report: Report) -> Json:
    """The whole report, with the distributions as percentiles."""
    return {
        "environment": report.fingerprint,
        "num_missed": report.num_missed,
        "rows": [_row(row) for row in report.rows],
        "distributions": {name: distribution(values) for name, values in report.distributions.items() if values},
    }


def write_json(report: Report, path: Path) -> None:
    """Write as_json, indented."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(as_json(report)), indent=2) + b"\n")


_MET = {True: "[green]yes[/green]", False: "[red]no[/red]", None: ""}


def _row(row: Row) -> Json:
    goal = row.goal
    return {
        "measure": row.measure,
        "unit": row.unit,
        "ours": row.ours,
        "reference": row.reference,
        "ratio": row.ratio,
        "goal": None if goal is None else {"bound": goal.bound, "factor": goal.factor, "plus": goal.plus},
        "met": row.is_met,
    }


def _figure(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
