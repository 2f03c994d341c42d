"""What a server does now: two readings of its /metrics page become rates per stage replica and edge.

In: pages. Out: a LiveView, and the Load that a verdict is made of. Does not know: HTTP, terminals.

A process reports about once a second, at a time of its own. Its `uptime` says when: rates are by that clock.
"""

from collections import defaultdict
from dataclasses import dataclass, replace

from prometheus_client.parser import text_string_to_metric_families

from antiphon.ids import ORCHESTRATOR
from antiphon.monitor.families import PREFIX
from antiphon.monitor.verdict import Load, ReplicaLoad, stages_in_order

SILENT_S = 2.5
"""A replica reports once a second unless its loop is in a step. After this long without, it counts as busy in one."""
_FROM_CLIENT = "client->"


@dataclass(frozen=True)
class Reading:
    """One page. values: metric without prefix -> [(labels, value)]; read_s: any clock, the same for both readings."""

    read_s: float
    values: dict[str, list[tuple[dict[str, str], float]]]

    def of(self, metric: str, **labels: str) -> list[float]:
        """The values of a metric whose labels have these values."""
        found = self.values.get(metric, [])
        return [value for own, value in found if all(own.get(key) == label for key, label in labels.items())]

    def names(self, metric: str, label: str) -> list[str]:
        """The values of a label, each once, in the page's order."""
        return list(dict.fromkeys(own[label] for own, _ in self.values.get(metric, []) if label in own))


@dataclass(frozen=True)
class ReplicaView:
    """One replica. Parts of time are 0 to 1. made_per_s: tokens, seconds of audio or rows, whichever it makes."""

    replica: str
    running: float
    waiting: float
    slots: float
    inflight: float
    step_busy: float
    steps_per_s: float
    made_per_s: float
    made_unit: str
    credit_wait: float
    outputs_queue: float
    oldest_output_s: float


@dataclass(frozen=True)
class EdgeView:
    """What one process sends on one edge."""

    edge: str
    producer: str
    chunks_per_s: float
    bytes_per_s: float
    credit_wait: float
    oldest_unreleased_s: float


@dataclass(frozen=True)
class LiveView:
    """A whole server between two readings."""

    loop_busy: float
    loop_lag_s: float
    requests_inflight: float
    requests_queued: float
    replicas: tuple[ReplicaView, ...]
    edges: tuple[EdgeView, ...]

    @property
    def load(self) -> Load:
        """What the verdict looks at."""
        replicas = tuple(
            ReplicaLoad(
                replica=view.replica,
                step_busy=view.step_busy,
                credit_wait=view.credit_wait,
                running=view.running,
                waiting=view.waiting,
                slots=view.slots,
                outputs_queue=view.outputs_queue,
                oldest_output_s=view.oldest_output_s,
            )
            for view in self.replicas
        )
        edges = dict.fromkeys(view.edge for view in self.edges if not view.edge.startswith(_FROM_CLIENT))
        return Load(
            loop_busy=self.loop_busy,
            loop_lag_s=self.loop_lag_s,
            requests_waiting=self.requests_queued,
            requests_inflight=self.requests_inflight,
            replicas=replicas,
            edges=tuple(edges),
        )


def read_page(text: str, read_s: float) -> Reading:
    """A page of /metrics; ValueError if it is none."""
    values: defaultdict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values[sample.name.removeprefix(PREFIX)].append((sample.labels, sample.value))
    return Reading(read_s, dict(values))


def live_view(before: Reading, after: Reading) -> LiveView:
    """What happened between two readings of one server; producers before their consumers."""
    pair = _Pair(before, after)
    view = LiveView(
        loop_busy=min(1.0, pair.rate("loop_busy_seconds_total", ORCHESTRATOR)),
        loop_lag_s=_most(after, "loop_lag_seconds"),
        requests_inflight=pair.mean("requests_inflight"),
        requests_queued=pair.mean("requests_queued"),
        replicas=tuple(pair.replica(name) for name in after.names("requests_running", "replica")),
        edges=tuple(
            pair.edge(edge, producer)
            for edge in after.names("edge_chunks_total", "edge")
            for producer in after.names("edge_chunks_total", "replica")
            if after.of("edge_chunks_total", edge=edge, replica=producer)
        ),
    )
    stages = stages_in_order(view.load)
    return replace(
        view,
        replicas=tuple(sorted(view.replicas, key=lambda each: _place(each.replica, stages))),
        edges=tuple(sorted(view.edges, key=lambda each: (_place(each.producer, stages), each.edge))),
    )


@dataclass(frozen=True)
class _Pair:
    """Two readings of one server."""

    before: Reading
    after: Reading

    def replica(self, name: str) -> ReplicaView:
        made, unit = self._made(name)
        return ReplicaView(
            replica=name,
            running=self.mean("requests_running", replica=name),
            waiting=self.mean("requests_waiting", replica=name),
            slots=sum(self.after.of("requests_max", replica=name)),
            inflight=self.mean("replica_inflight", replica=name),
            step_busy=1.0 if self._is_silent(name) else min(1.0, self.rate("step_seconds_total", name)),
            steps_per_s=self.rate("steps_total", name),
            made_per_s=made,
            made_unit=unit,
            credit_wait=min(1.0, self.rate("credit_wait_seconds_total", name)),
            outputs_queue=_most(self.after, "client_queue_max", replica=name),
            oldest_output_s=_most(self.after, "client_oldest_output_seconds", replica=name),
        )

    def edge(self, edge: str, producer: str) -> EdgeView:
        return EdgeView(
            edge=edge,
            producer=producer,
            chunks_per_s=self.rate("edge_chunks_total", producer, edge=edge),
            bytes_per_s=self.rate("edge_bytes_total", producer, edge=edge),
            credit_wait=min(1.0, self.rate("edge_wait_seconds_total", producer, edge=edge)),
            oldest_unreleased_s=_most(self.after, "edge_oldest_unreleased_seconds", edge=edge, replica=producer),
        )

    def mean(self, metric: str, **labels: str) -> float:
        """Of a gauge in both readings."""
        return (sum(self.before.of(metric, **labels)) + sum(self.after.of(metric, **labels))) / 2

    def rate(self, metric: str, process: str, **labels: str) -> float:
        """Of a counter of `process`, per second of its own clock; one that has started meanwhile counts from then."""
        if process != ORCHESTRATOR:
            labels["replica"] = process
        count = sum(self.after.of(metric, **labels))
        uptime_s = sum(self.after.of("uptime_seconds", process=process))
        if not self._has_started(process):
            count -= sum(self.before.of(metric, **labels))
            uptime_s -= sum(self.before.of("uptime_seconds", process=process))
        return max(0.0, count / uptime_s) if uptime_s else 0.0

    def _made(self, replica: str) -> tuple[float, str]:
        if tokens := self.rate("output_tokens_total", replica):
            return tokens, "tokens/s"
        if audio_s := self.rate("output_audio_seconds_total", replica):
            return audio_s, "s of audio/s"
        rows = self.rate("edge_rows_total", replica)
        return rows, "rows/s" if rows else ""

    def _has_started(self, process: str) -> bool:
        uptime_s = sum(self.after.of("uptime_seconds", process=process))
        return uptime_s < self.after.read_s - self.before.read_s or not self.before.of(
            "uptime_seconds", process=process
        )

    def _is_silent(self, replica: str) -> bool:
        uptimes = self.before.of("uptime_seconds", process=replica), self.after.of("uptime_seconds", process=replica)
        return uptimes[0] == uptimes[1] and self.after.read_s - self.before.read_s >= SILENT_S


def _place(process: str, stages: list[str]) -> tuple[int, str, int]:
    """To sort by: api-servers, then the stages in order; `talker/2` before `talker/10`."""
    stage, _, number = process.rpartition("/")
    return (stages.index(stage) if stage in stages else -1), stage, int(number)


def _most(reading: Reading, metric: str, **labels: str) -> float:
    return max(reading.of(metric, **labels), default=0.0)
