"""The once-a-second StatsReport of a replica: what the engine, the connector and the lanes have counted.

In: owners of counters. Out: one small control message per window. Does not know: requests.
"""

import time

from antiphon.connector.base import Connector
from antiphon.messages.control import Counter, StatsReport
from antiphon.monitor.counters import lane_counters_as_list
from antiphon.stage.engine.base import StageEngine
from antiphon.transport.channel import LaneCounters, Outlet

_WINDOW_S = 1.0


class StatisticsReporter:
    """Owns the clock of this replica's reports."""

    def __init__(
        self,
        replica: str,
        engine: StageEngine,
        connector: Connector,
        lanes: dict[str, LaneCounters],
        outlet: Outlet,
        orchestrator_address: str,
    ) -> None:
        self._replica = replica
        self._engine = engine
        self._connector = connector
        self._lanes = lanes
        self._outlet = outlet
        self._orchestrator_address = orchestrator_address
        self._next_s = 0.0

    def report_if_due(self, num_bound: int) -> None:
        """Send a report if the window is over."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _WINDOW_S
            self._outlet.send(self._orchestrator_address, StatsReport(self._replica, self._counters(num_bound)))

    def _counters(self, num_bound: int) -> tuple[Counter, ...]:
        engine, connector = self._engine.statistics(), self._connector.statistics()
        values = {
            "requests_bound": num_bound,
            "requests_running": engine.num_running,
            "requests_waiting": engine.num_waiting,
            "steps_total": engine.num_steps,
            "step_seconds_total": engine.busy_s,
            "chunks_put_total": connector.num_chunks_put,
            "chunk_bytes_put_total": connector.num_bytes_put,
            "chunks_received_total": connector.num_chunks_received,
            "chunk_bytes_received_total": connector.num_bytes_received,
            "chunks_refused_total": connector.num_refused,
            "arena_used_bytes": connector.arena_used_bytes,
            "arena_high_water_bytes": connector.arena_high_water_bytes,
            "leases": connector.num_leases,
        }
        label = (("replica", self._replica),)
        return (*(Counter(name, label, float(value)) for name, value in values.items()), *self._lane_counters())

    def _lane_counters(self) -> list[Counter]:
        counters = []
        for lane, lane_counters in self._lanes.items():
            labels = (("lane", lane), ("process", self._replica))
            counters += lane_counters_as_list(labels, lane_counters)
        return counters
