"""A run of `bench clients` for people and for later.

In: a CrowdReport. Out: rows with goals, lines of text, a JSON document. Does not know: how anything was measured.
"""

import dataclasses
from statistics import median

from antiphon.bench.clients.crowd import Manner, make_crowd
from antiphon.bench.clients.run import CrowdReport, Visit
from antiphon.bench.measures import Bound, Goal, Row, distribution
from antiphon.bench.report import Json

_GAP_GOAL = Goal(Bound.AT_MOST, 2.0)
_MAX_SHOWN = 5
_MIB = 1 << 20


def rows(report: CrowdReport) -> list[Row]:
    """Medians of the rounds: the well-behaved in the crowd, against the same ones alone."""
    return [_row(report, percent, _GAP_GOAL if percent == 99 else None) for percent in (50, 99)]


def _row(report: CrowdReport, percent: int, goal: Goal | None) -> Row:
    crowded, alone = (
        1000 * median(visit.gap_s(percent) for visit in visits)
        for visits in ([each.crowded for each in report.rounds], [each.alone for each in report.rounds])
    )
    return Row(f"gap between pieces, p{percent}, in the crowd / alone", "ms", crowded, alone, goal)


def lines(report: CrowdReport) -> list[str]:
    """Who was there, what failed, what was left."""
    settings = report.settings
    crowd = make_crowd(settings.num_clients, settings.shares, settings.seed)
    counts = ", ".join(f"{sum(guest.manner is manner for guest in crowd)} {_PLURAL[manner]}" for manner in Manner)
    left = [each.crowded.num_left for each in report.rounds]
    held = ", ".join(f"{name} {value:g}" for name, value in sorted(report.held.items()))
    found = [
        f"clients: {settings.num_clients}, of which {counts}",
        f"left before their answer was over, by round: {', '.join(map(str, left))}",
        f"answers of the others that were not whole or not right: {len(report.failures)} of {_num_stayed(report)}",
        *(f"  {line}" for line in report.failures[:_MAX_SHOWN]),
        f"held at rest: {held or 'nothing'}",
    ]
    grown = [f"{each.process} {each.num_bytes / _MIB:.1f} MiB, {each.num_files} files" for each in report.growths]
    return [*found, f"growth since the warm-up: {'; '.join(grown)}"]


def as_json(report: CrowdReport) -> Json:
    """The whole report, with the gaps of each run as a distribution."""
    return {
        "kind": "clients",
        "environment": report.environment,
        "settings": dataclasses.asdict(report.settings),
        "is_clean": report.is_clean,
        "rounds": [{"alone": _visit(each.alone), "crowded": _visit(each.crowded)} for each in report.rounds],
        "ratios": [each.ratio for each in report.rounds],
        "held": report.held,
        "growths": [dataclasses.asdict(each) for each in report.growths],
    }


_PLURAL = {Manner.READ: "read as they should", Manner.LEAVE: "vanish", Manner.DAWDLE: "read slowly"}


def _num_stayed(report: CrowdReport) -> int:
    visits = [visit for each in report.rounds for visit in (each.alone, each.crowded)]
    return sum(visit.num_clients - visit.num_left for visit in visits)


def _visit(visit: Visit) -> Json:
    return {
        "num_clients": visit.num_clients,
        "num_left": visit.num_left,
        "gaps_s": distribution(visit.gaps_s),
        "failures": list(visit.failures),
    }
