"""A replica's report: whatever it counts, it is small, and every counter is in the table of families."""

import msgspec
import pytest

from antiphon.connector.inproc import InprocConnector
from antiphon.messages.control import MAX_MESSAGE_BYTES, StatsReport
from antiphon.monitor.families import Kind, family_of
from antiphon.stage.engine.base import EngineStatistics
from antiphon.stage.engine.step_meter import StepMeter
from antiphon.stage.output_meter import OutputMeter
from antiphon.stage.report import StatisticsReporter
from antiphon.transport.channel import LaneCounters


class Engine:
    """Only its statistics are asked for."""

    def __init__(self) -> None:
        self.meter = StepMeter()

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(1, 2, 3, 4.0, 8, self.meter)


class Outlet:
    def __init__(self) -> None:
        self.sent: list[StatsReport] = []

    def send(self, address: str, message: StatsReport) -> None:
        self.sent.append(message)


@pytest.fixture
def report() -> StatsReport:
    """Of a replica with 20 out-edges that speaks to 50 api-servers."""
    meter, engine, outlet = OutputMeter(tuple(f"thinker->stage{n}" for n in range(20))), Engine(), Outlet()
    for number in range(50):
        meter.open_lane(f"ipc:///tmp/api-server.{number}.client.sock", f"api-server/{number}")
    engine.meter.step(4, 0.02)
    lanes = {"control": LaneCounters(), "control_out": LaneCounters(), "client": LaneCounters()}
    connector = InprocConnector("report", arena_bytes=1 << 20)
    reporter = StatisticsReporter(
        "thinker/0", engine, connector, lambda: meter.counters("thinker/0", {}), lanes, outlet, "ipc://orchestrator"
    )
    reporter.queued(0.2)
    reporter.report_if_due(5)
    reporter.report_if_due(6)
    (sent,) = outlet.sent
    return sent


def test_a_report_of_a_replica_with_many_neighbours_is_far_below_the_largest_control_message(report):
    assert len(msgspec.msgpack.encode(report)) < MAX_MESSAGE_BYTES / 2


def test_every_counter_is_in_the_table_with_labels_of_its_family(report):
    for counter in report.counters:
        family = family_of(counter.name)
        assert family is not None, counter.name
        labels = {label for label, _ in counter.labels} | ({"stage"} if "stage" in family.labels else set())
        assert labels - {"le"} == set(family.labels)
        assert ("le" in labels) == counter.name.endswith("_bucket")
        if family.kind is Kind.COUNTER:
            assert counter.value >= 0


def test_queue_and_step_times_are_told_as_distributions(report):
    values = {(each.name, dict(each.labels).get("le")): each.value for each in report.counters}
    assert values["queue_seconds_bucket", "0.1"] == 0
    assert values["queue_seconds_bucket", "0.25"] == 1
    assert values["step_duration_seconds_bucket", "0.025"] == 1
    assert values["batch_size_sum", None] == 4
