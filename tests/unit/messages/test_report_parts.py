"""A report goes in parts that each fit a control message, and comes whole or not at all."""

import msgspec
import pytest

from antiphon.messages.control import MAX_MESSAGE_BYTES, Counter, StatsReport
from antiphon.messages.report_parts import ReportGatherer, parts_of


def counters_of(num_replicas: int) -> tuple[Counter, ...]:
    """What an api-server counts of each replica that it hears."""
    names = ("client_messages_consumed_total", "client_queue_max", "client_oldest_output_s")
    labels = [(("replica", f"code2wav/{number}"), ("process", "api-server/0")) for number in range(num_replicas)]
    return tuple(Counter(name, each, 1.5) for each in labels for name in names)


@pytest.fixture
def gatherer() -> ReportGatherer:
    return ReportGatherer()


def test_a_small_report_is_one_part_and_whole_at_once(gatherer: ReportGatherer) -> None:
    (part,) = parts_of("api-server/0", counters_of(12))
    assert part == gatherer.take(part) == StatsReport("api-server/0", counters_of(12))


def test_a_process_that_has_counted_nothing_still_reports(gatherer: ReportGatherer) -> None:
    (part,) = parts_of("api-server/0", ())
    assert gatherer.take(part) == StatsReport("api-server/0", ())


@pytest.mark.parametrize("num_replicas", [260, 1_000, 10_000])
def test_a_report_of_any_size_goes_in_parts_that_fit_and_comes_whole(
    num_replicas: int, gatherer: ReportGatherer
) -> None:
    counters = counters_of(num_replicas)
    assert len(msgspec.msgpack.encode(StatsReport("api-server/0", counters))) > MAX_MESSAGE_BYTES / 2
    *parts, last = parts_of("api-server/0", counters)
    assert max(len(msgspec.msgpack.encode(part)) for part in (*parts, last)) < MAX_MESSAGE_BYTES
    assert [gatherer.take(part) for part in parts] == [None] * len(parts)
    assert gatherer.take(last) == StatsReport("api-server/0", counters)


def test_the_parts_of_several_processes_may_come_between_each_other(gatherer: ReportGatherer) -> None:
    pairs = list(zip(parts_of("a", counters_of(1_000)), parts_of("b", counters_of(1_000)), strict=True))
    whole = [report for pair in pairs for part in pair if (report := gatherer.take(part)) is not None]
    assert whole == [StatsReport("a", counters_of(1_000)), StatsReport("b", counters_of(1_000))]


@pytest.mark.parametrize("lost", [0, 3, 7])
def test_a_report_that_lost_a_part_is_dropped_and_the_next_one_is_whole(lost: int, gatherer: ReportGatherer) -> None:
    parts = parts_of("a", counters_of(1_000))
    assert len(parts) == 8
    assert [gatherer.take(part) for part in parts if part.number != lost] == [None] * 7
    assert [gatherer.take(part) for part in parts][-1] == StatsReport("a", counters_of(1_000))


def test_a_process_that_takes_the_name_of_one_that_died_begins_anew(gatherer: ReportGatherer) -> None:
    first, second, *_ = parts_of("a", counters_of(1_000))
    assert gatherer.take(first) is None
    gatherer.forget("a")
    assert gatherer.take(second) is None
    assert [gatherer.take(part) for part in parts_of("a", counters_of(500))][-1] == StatsReport("a", counters_of(500))
