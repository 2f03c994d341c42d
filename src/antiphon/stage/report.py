"""The once-a-second StatsReport of a replica: what the engine, the connector and the lanes have counted.

In: owners of counters. Out: one report per STATS_INTERVAL_S. Does not know: requests.
"""

import time
from collections.abc import Callable, Iterator

from antiphon.connector.base import Connector
from antiphon.messages.control import STATS_INTERVAL_S, Counter
from antiphon.messages.report_parts import parts_of
from antiphon.monitor.counters import lane_counters
from antiphon.monitor.distribution import DURATION_BUCKETS_S, Distribution
from antiphon.monitor.edge_counters import connector_counters
from antiphon.stage.engine.base import StageEngine
from antiphon.transport.channel import LaneCounters, Outlet


class StatisticsReporter:
    """Owns the clock of this replica's reports, and the queue times that they hold.

    outputs: what the replica has put on its lanes. address: where the reports go.
    """

    def __init__(
        self,
        replica: str,
        engine: StageEngine,
        connector: Connector,
        outputs: Callable[[], list[Counter]],
        lanes: dict[str, LaneCounters],
        outlet: Outlet,
        address: str,
    ) -> None:
        self._replica = replica
        self._engine = engine
        self._connector = connector
        self._outputs = outputs
        self._queue_times = Distribution(DURATION_BUCKETS_S)
        self._lanes = lanes
        self._outlet = outlet
        self._address = address
        self._since_s = time.monotonic()
        self._next_s = 0.0

    def queued(self, duration_s: float) -> None:
        """A request's first step began that long after its input had started."""
        self._queue_times.observe(duration_s)

    def report_if_due(self, num_bound: int) -> None:
        """Send a report if one is due."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + STATS_INTERVAL_S
            for part in parts_of(self._replica, self._counters(num_bound)):
                self._outlet.send(self._address, part)

    def _counters(self, num_bound: int) -> tuple[Counter, ...]:
        label = (("replica", self._replica),)
        return (
            Counter("uptime_s", (("process", self._replica),), time.monotonic() - self._since_s),
            Counter("requests_bound", label, float(num_bound)),
            *self._engine_counters(),
            *self._queue_times.counters("queue_seconds", label),
            *self._outputs(),
            *connector_counters(self._replica, self._connector.statistics()),
            *lane_counters(self._replica, self._lanes),
        )

    def _engine_counters(self) -> Iterator[Counter]:
        engine, label = self._engine.statistics(), (("replica", self._replica),)
        values = {
            "requests_running": engine.num_running,
            "requests_waiting": engine.num_waiting,
            "requests_max": engine.max_running,
            "steps_total": engine.num_steps,
            "step_seconds_total": engine.busy_s,
            "output_tokens_total": engine.num_tokens,
            "preemptions_total": engine.num_preemptions,
            "kv_blocks": engine.num_kv_blocks,
            "kv_blocks_used": engine.num_kv_blocks_used,
        }
        for name, value in values.items():
            yield Counter(name, label, float(value))
        if engine.meter is not None:
            yield from engine.meter.durations.counters("step_duration_seconds", label)
            yield from engine.meter.batch_sizes.counters("batch_size", label)
