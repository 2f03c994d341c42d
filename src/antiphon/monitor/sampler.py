"""Makes a window of what the loop has measured and what processes have reported: counters become rates.

In: closed windows with the last report of every process. Out: Windows. Does not know: files, threads, verdicts.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from antiphon.monitor.meter import Meter
from antiphon.monitor.windows import (
    ClosedWindow,
    EdgeWindow,
    HostSnapshot,
    ReplicaWindow,
    Window,
    edge_key,
    replica_key,
)

SILENT_S = 2.5
"""A replica reports once a second unless its loop is in a step. After this long without, it counts as busy in one."""
_GAUGES = frozenset(
    {
        "client_queue_max",
        "client_oldest_output_s",
        "requests_running",
        "requests_waiting",
        "requests_max",
        "edge_oldest_unreleased_s",
        "arena_used_bytes",
        "arena_high_water_bytes",
        "arena_bytes",
    }
)
_COUNTERS = frozenset(
    {
        "client_messages_sent_total",
        "client_messages_consumed_total",
        "steps_total",
        "step_seconds_total",
        "credit_wait_seconds_total",
        "edge_chunks_total",
        "edge_bytes_total",
    }
)
Labels = tuple[tuple[str, str], ...]
Subject = tuple[str, str]  # metric, replica
_DIGITS = 4


class Sampler:
    """Owns the meters of every counter, and from where on each replica's outputs are counted."""

    def __init__(self) -> None:
        self._meters: dict[tuple[str, str, Labels], Meter] = {}
        self._before_s = 0.0
        self._now_s = 0.0
        self._not_in_queue: dict[str, float] = {}
        self._high_water: dict[str, float] = {}

    def sample(self, closed: ClosedWindow) -> Window:
        """The window that has closed. What nobody reports (any more) is 0."""
        self._now_s = closed.closed_s
        self._before_s = closed.closed_s - closed.loop.duration_s
        host, duration_s = closed.host, closed.loop.duration_s
        gauges, meters = self._read(host)
        pools = {(counter.name, counter.labels): counter.value for counter in host.pools}
        loop = msgspec.structs.replace(
            closed.loop,
            requests_inflight=round(pools.get(("requests_inflight", ()), 0.0)),
            requests_waiting=round(pools.get(("requests_queued", ()), 0.0)),
            requests_waiting_max=max(host.max_waiting, round(pools.get(("requests_queued", ()), 0.0))),
        )
        inflight = {
            dict(labels)["replica"]: round(n) for (name, labels), n in pools.items() if name == "replica_inflight"
        }
        replicas = {}
        for replica in dict.fromkeys((*inflight, *host.max_inflight)):  # some have left in this window
            replicas[replica_key(*_split(replica))] = msgspec.structs.replace(
                self._replica(replica, gauges, meters, duration_s),
                inflight=inflight.get(replica, 0),
                inflight_max=max(inflight.get(replica, 0), host.max_inflight.get(replica, 0)),
            )
        return Window(loop, replicas, self._edges(gauges, meters, duration_s))

    def _read(self, host: HostSnapshot) -> tuple["_Gauges", "_Meters"]:
        """Every known number that processes have reported. Meters of processes that are gone are dropped."""
        gauges: _Gauges = defaultdict(list)
        meters: _Meters = defaultdict(list)
        seen: dict[tuple[str, str, Labels], Meter] = {}
        for received in host.reports:
            for counter in received.report.counters:
                if counter.name not in _GAUGES and counter.name not in _COUNTERS:
                    continue
                labels = dict(counter.labels)
                subject = (counter.name, labels.get("replica", ""))
                if counter.name in _GAUGES:
                    gauges[subject].append((labels, counter.value))
                    continue
                name = (received.report.source, counter.name, counter.labels)
                meter = seen[name] = self._meters.get(name) or Meter()
                meter.see(received.received_s, counter.value, self._before_s)
                meters[subject].append((labels, meter))
        self._meters = seen
        return gauges, meters

    def _replica(self, replica: str, gauges: "_Gauges", meters: "_Meters", duration_s: float) -> ReplicaWindow:
        busy = self._rate(meters["step_seconds_total", replica], while_silent=1.0)
        queue = self._outputs_queue(replica, meters)
        return ReplicaWindow(
            outputs_queue_size=queue,
            outputs_queue_max=max(queue, round(_most(gauges["client_queue_max", replica]))),
            oldest_output_s=round(_most(gauges["client_oldest_output_s", replica]), _DIGITS),
            running=round(_most(gauges["requests_running", replica])),
            waiting=round(_most(gauges["requests_waiting", replica])),
            slots=round(_most(gauges["requests_max", replica])),
            steps=_figure(self._rate(meters["steps_total", replica]) * duration_s),
            step_busy_s=_figure(min(1.0, busy) * duration_s),
            credit_wait_s=_figure(min(1.0, self._rate(meters["credit_wait_seconds_total", replica])) * duration_s),
        )

    def _rate(self, found: Iterable[tuple[dict[str, str], Meter]], while_silent: float = 0.0) -> float:
        return sum(
            while_silent if self._now_s - meter.received_s > SILENT_S else meter.per_s for _labels, meter in found
        )

    def _outputs_queue(self, replica: str, meters: "_Meters") -> int:
        """Messages sent and not consumed, as of the moment up to which all sides have reported.

        A process that starts again loses what lay in its queue, and its count begins at 0: from there on we count anew.
        """
        sent = [meter for _labels, meter in meters["client_messages_sent_total", replica]]
        consumed = [meter for _labels, meter in meters["client_messages_consumed_total", replica]]
        if not sent or not consumed:
            return 0
        seen_s = min(meter.received_s for meter in (*sent, *consumed))
        size = sum(meter.at(seen_s) for meter in sent) - sum(meter.at(seen_s) for meter in consumed)
        if any(meter.has_restarted for meter in (*sent, *consumed)):
            self._not_in_queue[replica] = size
        return max(0, round(size - self._not_in_queue.get(replica, 0.0)))

    def _edges(self, gauges: "_Gauges", meters: "_Meters", duration_s: float) -> dict[str, EdgeWindow]:
        oldest = {
            (replica, labels["edge"]): value
            for (name, replica), found in gauges.items()
            for labels, value in found
            if name == "edge_oldest_unreleased_s"
        }
        chunks = self._edge_rates("edge_chunks_total", meters)
        num_bytes = self._edge_rates("edge_bytes_total", meters)
        edges = {}
        fills = {
            replica: self._arena_fill(replica, gauges) for replica in dict.fromkeys(replica for replica, _ in chunks)
        }
        for replica, edge in chunks:
            fill, fill_max = fills[replica]
            edges[edge_key(edge, replica)] = EdgeWindow(
                chunks=_figure(chunks[replica, edge] * duration_s),
                bytes=round(num_bytes.get((replica, edge), 0.0) * duration_s),
                arena_fill=fill,
                arena_fill_max=fill_max,
                oldest_unreleased_s=_figure(oldest.get((replica, edge), 0.0)),
            )
        return edges

    def _edge_rates(self, wanted: str, meters: "_Meters") -> dict[tuple[str, str], float]:
        return {
            (replica, labels["edge"]): self._rate([(labels, meter)])
            for (name, replica), found in meters.items()
            for labels, meter in found
            if name == wanted
        }

    def _arena_fill(self, replica: str, gauges: "_Gauges") -> tuple[float, float]:
        """Parts of the arena: used now, and the most in this window. The producer counts its most since its start."""
        size = _most(gauges["arena_bytes", replica])
        if not size:
            return 0.0, 0.0
        used, high_water = _most(gauges["arena_used_bytes", replica]), _most(gauges["arena_high_water_bytes", replica])
        has_risen = high_water > self._high_water.get(replica, 0.0)
        self._high_water[replica] = high_water
        return _figure(used / size), _figure(max(used, high_water if has_risen else 0.0) / size)


_Gauges = defaultdict[Subject, list[tuple[dict[str, str], float]]]
_Meters = defaultdict[Subject, list[tuple[dict[str, str], Meter]]]


def _most(found: Iterable[tuple[dict[str, str], float]]) -> float:
    return max(_values(found), default=0.0)


def _values(found: Iterable[tuple[dict[str, str], float]]) -> Iterator[float]:
    yield from (value for _labels, value in found)


def _figure(value: float) -> float:
    return round(value, _DIGITS)


def _split(replica: str) -> tuple[str, str]:
    stage, _, index = replica.rpartition("/")
    return stage, index
