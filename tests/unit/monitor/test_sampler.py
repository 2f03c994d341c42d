"""The sampler on reports that are written down by hand: counters become rates, what is gone becomes 0."""

import pytest

from antiphon.messages.control import Counter, StatsReport
from antiphon.monitor.sampler import Sampler
from antiphon.monitor.windows import ClosedWindow, HostSnapshot, LoopWindow, ReceivedReport, ReplicaWindow, Window

TALKER = "stage=talker,replica=0"
EDGE = "edge=talker->code2wav,replica=talker/0"
Values = dict[str, float]


def report(received_s: float, source: str, values: Values, **labels: str) -> ReceivedReport:
    every = tuple(labels.items())
    return ReceivedReport(received_s, StatsReport(source, tuple(Counter(n, every, v) for n, v in values.items())))


def talker(received_s: float, values: Values, **labels: str) -> ReceivedReport:
    return report(received_s, "talker/0", values, replica="talker/0", **labels)


def consumed(received_s: float, count: float, process: str = "api-server/0") -> ReceivedReport:
    return report(received_s, process, {"client_messages_consumed_total": count}, replica="talker/0", process=process)


def window(
    sampler: Sampler, closed_s: float, *reports: ReceivedReport, inflight: dict[str, int] | None = None, **more: int
) -> Window:
    bound = {"talker/0": 2} if inflight is None else inflight
    pools = [Counter("replica_inflight", (("replica", name),), float(count)) for name, count in bound.items()]
    pools += [Counter("requests_inflight", (), 7.0), Counter("requests_queued", (), 3.0)]
    most = {"talker/0": more["max_inflight"]} if "max_inflight" in more else {}
    host = HostSnapshot(reports, tuple(pools), more.get("max_waiting", 0), most)
    return sampler.sample(ClosedWindow(closed_s, LoopWindow(duration_s=1.0), host))


def test_a_counter_is_given_per_window_by_its_rate_between_two_reports() -> None:
    sampler = Sampler()
    window(sampler, 1.0, talker(0.5, {"steps_total": 100, "step_seconds_total": 0.4}))
    found = window(sampler, 2.0, talker(1.75, {"steps_total": 350, "step_seconds_total": 1.4})).replicas[TALKER]
    assert (found.steps, found.step_busy_s) == (200.0, 0.8)  # 250 steps and 1 s in 1.25 s


def test_reports_that_were_held_up_and_come_close_together_give_no_peak() -> None:
    sampler = Sampler()
    window(sampler, 1.0, talker(0.99, {"steps_total": 100}))
    assert window(sampler, 2.0, talker(1.05, {"steps_total": 300})).replicas[TALKER].steps == 200.0


def test_a_first_report_is_of_at_least_a_second() -> None:
    found = window(Sampler(), 1.0, talker(0.01, {"steps_total": 50, "step_seconds_total": 0.3})).replicas[TALKER]
    assert (found.steps, found.step_busy_s) == (50.0, 0.3)


def test_a_window_without_a_new_report_goes_on_at_the_last_rate() -> None:
    sampler = Sampler()
    window(sampler, 1.0, talker(0.9, {"steps_total": 100}))
    second = talker(1.95, {"steps_total": 310})
    assert window(sampler, 2.0, second).replicas[TALKER].steps == 200.0
    assert window(sampler, 3.0, second).replicas[TALKER].steps == 200.0


def test_a_replica_that_is_silent_is_in_a_step() -> None:
    sampler = Sampler()
    last = talker(0.9, {"steps_total": 100, "step_seconds_total": 0.1})
    window(sampler, 1.0, last)
    found = window(sampler, 5.0, last).replicas[TALKER]
    assert (found.steps, found.step_busy_s) == (0.0, 1.0)


def test_time_in_steps_is_never_more_than_the_window() -> None:
    sampler = Sampler()
    window(sampler, 1.0, talker(0.9, {"step_seconds_total": 0.0, "credit_wait_seconds_total": 0.0}))
    found = window(sampler, 2.0, talker(1.2, {"step_seconds_total": 5.0, "credit_wait_seconds_total": 9.0}))
    assert (found.replicas[TALKER].step_busy_s, found.replicas[TALKER].credit_wait_s) == (1.0, 1.0)


def test_a_replica_that_has_started_again_counts_from_0() -> None:
    sampler = Sampler()
    window(sampler, 1.0, talker(1.0, {"steps_total": 1000}))
    assert window(sampler, 2.0, talker(2.0, {"steps_total": 30})).replicas[TALKER].steps == 30.0


def test_what_nobody_reports_is_0_and_a_replica_without_a_report_is_there() -> None:
    found = window(Sampler(), 1.0)
    assert found.replicas == {TALKER: ReplicaWindow(inflight=2, inflight_max=2)}
    assert found.edges == {}


def test_a_replica_that_vanishes_between_its_report_and_the_pools_is_left_out() -> None:
    reports = (talker(0.9, {"steps_total": 100}), talker(0.9, {"edge_chunks_total": 4}, edge="talker->code2wav"))
    found = window(Sampler(), 1.0, *reports, inflight={"thinker/0": 1})
    assert list(found.replicas) == ["stage=thinker,replica=0"]


def test_a_replica_that_joined_and_left_in_one_window_is_in_it() -> None:
    found = window(Sampler(), 1.0, inflight={}, max_inflight=3)
    assert found.replicas == {TALKER: ReplicaWindow(inflight_max=3)}


def test_the_output_queue_is_what_was_sent_and_no_api_server_has_consumed() -> None:
    sent = talker(1.0, {"client_messages_sent_total": 50})
    both = (consumed(1.0, 20), consumed(1.0, 12, "api-server/1"))
    assert window(Sampler(), 1.0, sent, *both).replicas[TALKER].outputs_queue_size == 18


def test_the_output_queue_is_no_larger_for_reports_that_are_not_of_the_same_moment() -> None:
    sampler = Sampler()
    window(sampler, 1.0, talker(1.0, {"client_messages_sent_total": 1000}), consumed(0.5, 500))
    found = window(sampler, 2.0, talker(2.0, {"client_messages_sent_total": 2000}), consumed(1.5, 1500))
    assert found.replicas[TALKER].outputs_queue_size == 0


@pytest.mark.parametrize(("sent", "taken"), [(30.0, 1030.0), (1060.0, 10.0)], ids=["the replica", "the api-server"])
def test_the_output_queue_begins_anew_when_one_side_has_started_again(sent: float, taken: float) -> None:
    sampler = Sampler()
    window(sampler, 1.0, talker(1.0, {"client_messages_sent_total": 1000}), consumed(1.0, 1000))
    window(sampler, 2.0, talker(2.0, {"client_messages_sent_total": sent}), consumed(2.0, taken))
    later = (talker(3.0, {"client_messages_sent_total": sent + 100}), consumed(3.0, taken + 60))
    assert window(sampler, 3.0, *later).replicas[TALKER].outputs_queue_size == 40


def test_gauges_of_several_processes_are_the_worst_and_the_queues_peak_is_at_least_its_size() -> None:
    def waited(process: str, most: float, oldest_s: float) -> ReceivedReport:
        values = {"client_queue_max": most, "client_oldest_output_s": oldest_s}
        return report(1.0, process, values, replica="talker/0", process=process)

    found = window(Sampler(), 1.0, waited("api-server/0", 9, 0.2), waited("api-server/1", 4, 1.5)).replicas[TALKER]
    assert (found.outputs_queue_max, found.oldest_output_s) == (9, 1.5)
    sent = talker(1.0, {"client_messages_sent_total": 50})
    assert window(Sampler(), 1.0, sent, consumed(1.0, 0)).replicas[TALKER].outputs_queue_max == 50


def test_peaks_between_windows_are_kept() -> None:
    found = window(Sampler(), 1.0, max_waiting=11, max_inflight=5)
    assert (found.window.requests_waiting, found.window.requests_waiting_max) == (3, 11)
    assert (found.replicas[TALKER].inflight, found.replicas[TALKER].inflight_max) == (2, 5)
    assert window(Sampler(), 1.0).window.requests_waiting_max == 3


def test_an_edge_has_its_traffic_and_the_fill_of_its_producers_arena() -> None:
    def reports(at_s: float, chunks: float, high_water: float) -> tuple[ReceivedReport, ...]:
        arena = {"arena_bytes": 1000, "arena_used_bytes": 250, "arena_high_water_bytes": high_water}
        label = (("edge", "talker->code2wav"), ("replica", "talker/0"))
        edge = {"edge_chunks_total": chunks, "edge_bytes_total": 10 * chunks, "edge_oldest_unreleased_s": 0.5}
        counters = [Counter(name, label, value) for name, value in edge.items()]
        counters += [Counter(name, label[1:], value) for name, value in arena.items()]
        return (ReceivedReport(at_s, StatsReport("talker/0", tuple(counters))),)

    sampler = Sampler()
    window(sampler, 1.0, *reports(1.0, 0, 300))
    edge = window(sampler, 2.0, *reports(2.0, 40, 800)).edges[EDGE]
    assert (edge.chunks, edge.bytes, edge.oldest_unreleased_s) == (40.0, 400.0, 0.5)
    assert (edge.arena_fill, edge.arena_fill_max) == (0.25, 0.8)
    assert window(sampler, 3.0, *reports(3.0, 40, 800)).edges[EDGE].arena_fill_max == 0.25  # that peak was before


def test_nothing_is_kept_of_processes_that_are_gone() -> None:
    sampler = Sampler()
    for number in range(20):
        window(sampler, float(number), report(float(number), f"talker/{number}", {"steps_total": 1.0}, replica="x"))
    assert len(sampler._meters) == 1
