"""Where the time goes: figures of a stretch of time -> which part holds the others up, in one line.

In: a Load. Out: a Verdict. A pure function. Does not know: files, metrics, who asks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from antiphon.ids import stage_of

LOOP_BUSY = 0.8
STEP_BUSY = 0.6
STEP_BUSY_MARGIN = 0.15
SLOTS_FULL = 0.5
STARVED_OF_CREDIT = 0.5
UPSTREAM_WAITS = 0.2
OLD_OUTPUT_S = 0.5


@dataclass(frozen=True)
class ReplicaLoad:
    """One replica over a stretch of time; parts of time are 0 to 1, counts and ages are averages over it.

    step_busy: part of the time in steps. credit_wait: part of the time in which a request waited for credit.
    running, waiting: requests in the engine's slots, and those that wait for one. slots: 0 = unknown.
    outputs_queue, oldest_output_s: messages that its api-servers have not read, and the age of the oldest.
    """

    replica: str
    step_busy: float = 0.0
    credit_wait: float = 0.0
    running: float = 0.0
    waiting: float = 0.0
    slots: float = 0.0
    outputs_queue: float = 0.0
    oldest_output_s: float = 0.0

    @property
    def is_full(self) -> bool:
        """Requests wait because the slots are taken, at most of the looks that were averaged."""
        return self.waiting >= 0.5 and self.running >= SLOTS_FULL * self.slots


@dataclass(frozen=True)
class Load:
    """A whole server over a stretch of time.

    loop_busy: part of the time in which the orchestrator's loop worked, or was kept from running. loop_lag_s: the
    longest that a message lay unread. requests_waiting: those that admission holds back. edges: names of edges between
    stages, which give the stages' order.
    """

    loop_busy: float = 0.0
    loop_lag_s: float = 0.0
    requests_waiting: float = 0.0
    requests_inflight: float = 0.0
    replicas: tuple[ReplicaLoad, ...] = ()
    edges: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """bottleneck: a stage's name, "orchestrator", "api-server", "admission", or "" if nothing is saturated."""

    bottleneck: str
    reason: str

    def __str__(self) -> str:
        return f"{self.bottleneck} is the bottleneck: {self.reason}" if self.bottleneck else self.reason


def verdict_of(load: Load) -> Verdict:
    """The orchestrator before the api-servers before the stages: a late one of these hides what is behind it.

    Of stages, the one furthest downstream that is saturated and does not itself wait for credit; one that is in steps
    much less than another saturated stage is fed too slowly by it, and is passed over.
    """
    if load.loop_busy >= LOOP_BUSY:
        lag = f"a message lay unread for up to {_seconds(load.loop_lag_s)}"
        return Verdict("orchestrator", f"its loop was busy {_percent(load.loop_busy)} of the time, {lag}")
    late = max(load.replicas, key=lambda replica: replica.oldest_output_s, default=ReplicaLoad(""))
    if late.oldest_output_s >= OLD_OUTPUT_S:
        age = f"the oldest for {_seconds(late.oldest_output_s)}"
        return Verdict("api-server", f"{late.outputs_queue:.0f} outputs of {late.replica} lie unread, {age} on average")
    saturated = {stage: _saturated(load, stage) for stage in reversed(stages_in_order(load))}
    busiest = max((_busy(replicas) for replicas in saturated.values()), default=0.0)
    for stage, replicas in saturated.items():
        if replicas and _busy(replicas) >= busiest - STEP_BUSY_MARGIN:
            return Verdict(stage, _reason(_replicas_of(load, stage), replicas, _upstream(load, stage)))
    return _nothing_saturated(load)


def stages_in_order(load: Load) -> list[str]:
    """The stages, producers before their consumers; those without edges as they come."""
    rest = list(dict.fromkeys(stage_of(replica.replica) for replica in load.replicas))
    edges = [(producer, consumer) for producer, _, consumer in (edge.partition("->") for edge in load.edges)]
    ordered: list[str] = []
    while rest:
        ready = [stage for stage in rest if not any(p in rest and c == stage and p != c for p, c in edges)]
        for stage in ready or rest[:1]:
            ordered.append(stage)
            rest.remove(stage)
    return ordered


def _saturated(load: Load, stage: str) -> list[ReplicaLoad]:
    """Replicas that work most of the time while requests wait for their slots, or a stage before for their credit."""
    is_waited_for = any(producer.credit_wait >= UPSTREAM_WAITS for producer in _upstream(load, stage))
    return [
        replica
        for replica in _replicas_of(load, stage)
        if replica.step_busy >= STEP_BUSY
        and replica.credit_wait < STARVED_OF_CREDIT
        and (replica.is_full or is_waited_for)
    ]


def _busy(replicas: Sequence[ReplicaLoad]) -> float:
    """The replicas' average part of time in steps."""
    return sum(replica.step_busy for replica in replicas) / len(replicas) if replicas else 0.0


def _reason(replicas: Sequence[ReplicaLoad], saturated: Sequence[ReplicaLoad], upstream: Iterable[ReplicaLoad]) -> str:
    names = f" ({', '.join(replica.replica for replica in saturated)})" if len(saturated) < len(replicas) else ""
    parts = [f"{len(saturated)} of {len(replicas)} replicas saturated{names}"]
    parts.append(f"in steps {_percent(_busy(saturated))} of the time")
    waiting = sum(replica.waiting for replica in saturated)
    if waiting >= 0.5:
        parts.append(f"{waiting:.0f} requests wait for a slot")
    blocked = max(upstream, key=lambda replica: replica.credit_wait, default=ReplicaLoad(""))
    if blocked.credit_wait >= 0.05:
        parts.append(f"{stage_of(blocked.replica)} waits on credit {_percent(blocked.credit_wait)} of the time")
    return ", ".join(parts)


def _nothing_saturated(load: Load) -> Verdict:
    busiest = max(load.replicas, key=lambda replica: replica.step_busy, default=None)
    busy = f"the busiest is {busiest.replica}, in steps {_percent(busiest.step_busy)} of the time" if busiest else ""
    if load.requests_waiting >= 0.5:
        held = f"{load.requests_waiting:.0f} requests wait while {load.requests_inflight:.0f} run"
        raising = "raise admission.max_inflight"
        return Verdict("admission", f"{held}, and no stage is saturated ({busy}); {raising}")
    return Verdict("", f"nothing is saturated{'; ' if busy else ''}{busy}")


def _replicas_of(load: Load, stage: str) -> list[ReplicaLoad]:
    return [replica for replica in load.replicas if stage_of(replica.replica) == stage]


def _upstream(load: Load, stage: str) -> list[ReplicaLoad]:
    producers = {edge.partition("->")[0] for edge in load.edges if edge.partition("->")[2] == stage}
    return [replica for replica in load.replicas if stage_of(replica.replica) in producers]


def _percent(part: float) -> str:
    return f"{100 * min(1.0, part):.0f} %"


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1.0 else f"{1000 * value:.0f} ms"
