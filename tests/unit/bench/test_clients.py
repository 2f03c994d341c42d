"""Who is in a crowd, what counts as a gap, and what the report says of a run."""

from collections import Counter
from pathlib import Path

import pytest

from antiphon.bench.chaos.census import Process, Size
from antiphon.bench.clients.crowd import Manner, Shares, make_crowd
from antiphon.bench.clients.left import Growth, growths
from antiphon.bench.clients.report import as_json, lines, rows
from antiphon.bench.clients.run import CrowdReport, CrowdSettings, Round, Visit, gaps_s
from antiphon.bench.serve.messages import Record
from antiphon.errors import ConfigError


def test_a_crowd_has_its_shares_and_follows_from_its_seed() -> None:
    crowd = make_crowd(200, Shares(0.2, 0.1), seed=7)
    assert Counter(guest.manner for guest in crowd) == {Manner.READ: 140, Manner.LEAVE: 40, Manner.DAWDLE: 20}
    assert crowd == make_crowd(200, Shares(0.2, 0.1), seed=7) != make_crowd(200, Shares(0.2, 0.1), seed=8)
    points = [guest.leaves_at for guest in crowd if guest.manner is Manner.LEAVE]
    assert len(set(points)) == 40 and all(0 < point < 1 for point in points)
    assert {guest.leaves_at for guest in crowd if guest.manner is not Manner.LEAVE} == {0.0}


@pytest.mark.parametrize(("leaving", "dawdling"), [(0.6, 0.4), (-0.1, 0.1), (0.1, -0.1)])
def test_shares_leave_room_for_those_that_are_measured(leaving: float, dawdling: float) -> None:
    with pytest.raises(ConfigError, match="together they are below 1"):
        Shares(leaving, dawdling)


def test_a_gap_is_between_reads_whatever_they_bring() -> None:
    record = Record(0, 0.0, 0.0, 0.0, text_s=[1.0, 1.0, 1.5], audio_s=[1.25, 2.0, 2.0])
    assert gaps_s(record) == [0.25, 0.25, 0.5]
    assert gaps_s(Record(0, 0.0, 0.0, 0.0, text_s=[1.0, 1.0])) == []


def test_only_processes_that_lived_all_the_time_can_have_grown() -> None:
    server, old, new = Process(1, 10, "api-server/0"), Process(2, 10, "a/0"), Process(2, 99, "a/0")
    before, after = {server: Size(100, 5, 2), old: Size(1, 1, 2)}, {server: Size(300, 7, 2), new: Size(9, 9, 2)}
    assert growths(before, after) == (Growth("api-server/0", 200, 2),)


def report(*ratios: float, failures: tuple[str, ...] = (), held: dict[str, float] | None = None) -> CrowdReport:
    """Rounds whose crowded gaps are `ratios` times those of the well-behaved alone, which are 10 ms."""
    rounds = tuple(Round(Visit(14, 0, [0.01], ()), Visit(20, 3, [0.01 * ratio], failures)) for ratio in ratios)
    grown = (Growth("api-server/0", 3 << 19, 0),)
    return CrowdReport(CrowdSettings(num_clients=20), rounds, held or {}, grown, Path("server.log"), {})


@pytest.mark.parametrize(("ratios", "is_met"), [((1.0, 1.5, 9.0), True), ((1.0, 2.5, 9.0), False)])
def test_the_median_round_is_held_against_the_goal(ratios: tuple[float, ...], is_met: bool) -> None:
    _, p99 = rows(report(*ratios))
    assert (p99.ours, p99.reference, p99.is_met) == (pytest.approx(10 * ratios[1]), pytest.approx(10.0), is_met)


def test_what_failed_and_what_is_held_makes_a_run_unclean_and_is_told() -> None:
    assert report(1.0).is_clean
    failed = report(1.0, failures=("client 3 (reads): the answer ended without [DONE]",))
    held = report(1.0, held={'leases{process="a/0"}': 2.0})
    assert not failed.is_clean and not held.is_clean
    assert "answers of the others that were not whole or not right: 1 of 31" in lines(failed)
    assert "  client 3 (reads): the answer ended without [DONE]" in lines(failed)
    assert 'held at rest: leases{process="a/0"} 2' in lines(held)
    assert lines(held)[:2] == [
        "clients: 20, of which 14 read as they should, 4 vanish, 2 read slowly",
        "left before their answer was over, by round: 3",
    ]
    assert lines(held)[-1] == "growth since the warm-up: api-server/0 1.5 MiB, 0 files"
    assert as_json(held)["held"] and as_json(held)["ratios"] == [1.0]
