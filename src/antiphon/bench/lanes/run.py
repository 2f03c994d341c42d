"""`bench lanes`: the micro-benchmarks of the three lanes, part by part, each with a reference of the same run.

In: which parts, how thoroughly. Out: a Report, and why parts failed. Does not know: how the report is shown.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import uvloop

from antiphon.bench.lanes.connector import connector
from antiphon.bench.lanes.control import control
from antiphon.bench.lanes.effort import Effort
from antiphon.bench.lanes.http import sse
from antiphon.bench.lanes.outputs import idle_replicas, outputs, trivial_stages
from antiphon.bench.measures import Row
from antiphon.bench.report import Report, fingerprint
from antiphon.errors import AntiphonError, ConfigError


@dataclass(frozen=True)
class Part:
    """One group of measurements."""

    title: str
    run: Callable[[Effort], Awaitable[list[Row]]]


PARTS = {
    "a": Part("outputs/s to per-request consumers", outputs),
    "b": Part("one busy replica beside idle ones", idle_replicas),
    "c": Part("three trivial stages", trivial_stages),
    "d": Part("the shm connector between two processes", connector),
    "e": Part("the orchestrator", control),
    "f": Part("text deltas over HTTP", sse),
}


@dataclass(frozen=True)
class LanesReport:
    """What was measured, and which parts failed and why."""

    report: Report
    problems: tuple[str, ...]


def parse_parts(only: str) -> tuple[str, ...]:
    """`a,c` -> ("a", "c"); all for "". ConfigError if there is no such part."""
    names = tuple(name.strip() for name in only.split(",")) if only else tuple(PARTS)
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise ConfigError(
            [f"--only {only}: there is no part {name!r}; there are {', '.join(PARTS)}" for name in unknown]
        )
    return names


def run_lanes(names: tuple[str, ...], effort: Effort, say: Callable[[str], None]) -> LanesReport:
    """Measure one part after the other; one that fails or is not over in effort.part_s does not stop the others."""
    machine = fingerprint()
    rows: list[Row] = []
    problems: list[str] = []
    for name in names:
        say(f"{name}: {PARTS[name].title}")
        try:
            rows += uvloop.run(_in_time(PARTS[name], effort))
        except TimeoutError:
            problems.append(f"{name}: {PARTS[name].title}: not over in {effort.part_s:g} s")
        except (AntiphonError, OSError) as error:
            problems.append(f"{name}: {PARTS[name].title}: {error}")
    return LanesReport(Report(tuple(rows), {}, machine), tuple(problems))


async def _in_time(part: Part, effort: Effort) -> list[Row]:
    async with asyncio.timeout(effort.part_s):
        return await part.run(effort)
