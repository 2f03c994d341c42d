"""Part e of `bench lanes`: control messages per second, and what a request costs the orchestrator.

In: an effort. Out: rows; StageError if a message was lost. Does not know: what stages compute.
"""

import asyncio
import os
import tempfile
import time
from dataclasses import dataclass
from statistics import median

import msgspec

from antiphon.bench.lanes.bare import BareChain
from antiphon.bench.lanes.effort import Deadline, Effort, at_most
from antiphon.bench.lanes.emitting import Emitters
from antiphon.bench.lanes.orchestrated import MESSAGES_PER_REQUEST, OrchestratorBench, life_of, ready, submit
from antiphon.bench.measures import Bound, Goal, Row
from antiphon.bench.processes import children_of, exact_cpu_s, name_of
from antiphon.errors import StageError
from antiphon.ids import ORCHESTRATOR
from antiphon.messages.codec import TO_ORCHESTRATOR
from antiphon.models.simulated.emitter_pipeline import THREE, EmitterPlan, Form, Heard
from antiphon.orchestrator.admission import Admission
from antiphon.orchestrator.orchestrator import Orchestrator

_TOKENS = (10, 1000)
_IDLE_S = 2.0
_UNIT = "msg/s"


class _EncodingOutlet:
    """Owns what the orchestrator has said, written as for a socket."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self.said: list[msgspec.Struct] = []

    def send(self, address: str, message: msgspec.Struct) -> None:
        """Encode it."""
        self._encoder.encode(message)
        self.said.append(message)

    def flush_to(self, address: str) -> None:
        """Nothing waits."""

    def forget(self, address: str) -> None:
        """Nothing is connected."""


class _NoProcesses:
    """Members that are no processes."""

    def watch(self, name: str, pid: int) -> bool:
        """It lives."""
        return True

    def kill(self, name: str) -> None:
        """StageError: nobody here hangs."""
        raise StageError(f"{name} was to be killed")

    def remove_sockets(self, *addresses: str) -> None:
        """There are none."""


async def control(effort: Effort) -> list[Row]:
    """Part e."""
    in_process, codec_alone, codec_ms = _in_process(effort)
    rows = [Row("e: orchestrator in process / its codec alone", _UNIT, in_process, codec_alone)]
    with tempfile.TemporaryDirectory(prefix="lanes-") as directory:
        async with BareChain(directory, 1) as chain:
            bare = 2 * await chain.asks_per_s(effort.num_control, 64)
        with OrchestratorBench(directory, Deadline(effort.part_s)) as bench:
            rates = [bench.messages_per_s(effort.num_control) for _ in range(effort.repeats)]
    rows.append(Row("e: orchestrator over sockets / bare relay", _UNIT, median(rates), bare))
    few, many = await _cpu(effort)
    label = f"e: orchestrator CPU per request, {_TOKENS[1]:,} / {_TOKENS[0]} tokens"
    rows.append(Row(label, "ms", many.request_ms, few.request_ms, Goal(Bound.AT_MOST, 1.1)))
    rows.append(Row("e: the same with what it does when idle", "ms", many.all_ms, few.all_ms))
    rows.append(Row(f"e: the same, {_TOKENS[1]:,} tokens / codec alone", "ms", many.request_ms, codec_ms, at_most(1.0)))
    return rows


def _in_process(effort: Effort) -> tuple[float, float, float]:
    """Messages/s through Orchestrator.handle, through its codec alone, and what that takes per request in ms."""
    outlet = _EncodingOutlet()
    orchestrator = Orchestrator(
        THREE, Admission(max_inflight=256, max_queue=1024), outlet, _NoProcesses(), release_deadline_s=60.0
    )
    for message in ready("api", "replica"):
        orchestrator.handle(message)
    encode = msgspec.msgpack.encode
    names = [f"req-{number:016x}" for number in range(effort.num_control)]
    heard = [encode(message) for name in names for message in (submit(name), *life_of(name, 0))]
    outlet.said.clear()
    began_s = time.perf_counter()
    for raw in heard:
        orchestrator.handle(TO_ORCHESTRATOR.decode(raw))
    taken_s = time.perf_counter() - began_s
    num_messages = MESSAGES_PER_REQUEST * len(names)
    if len(heard) + len(outlet.said) != num_messages or orchestrator.num_open:
        raise StageError(f"{len(heard)} messages in and {len(outlet.said)} out, expected {num_messages} together")
    began_s = time.perf_counter()
    for raw in heard:
        TO_ORCHESTRATOR.decode(raw)
    for said in outlet.said:
        encode(said)
    codec_s = time.perf_counter() - began_s
    return num_messages / taken_s, num_messages / codec_s, codec_s / len(names) * 1000


@dataclass(frozen=True)
class _Cost:
    """CPU of the orchestrator's process per request: all of it, and what it would not have used when idle."""

    all_ms: float
    request_ms: float


async def _cpu(effort: Effort) -> tuple[_Cost, _Cost]:
    """Of requests of 10 and of 1,000 tokens, which take turns.

    The short ones are started as seldom as the long ones: a process that is woken seldom finds its caches cold, and
    what it does every second whatever happens counts for both alike.
    """
    few, many = (EmitterPlan(num_tokens, 0, form=Form.TEXT, heard=Heard.ALL) for num_tokens in _TOKENS)
    async with Emitters(1, num_stages=3) as emitters:
        (pid,) = (child for child in children_of(os.getpid()) if name_of(child).startswith(ORCHESTRATOR))
        period_s = max(await emitters.latencies_ms(3, many)) / 1000
        before_s = exact_cpu_s(pid)
        await asyncio.sleep(_IDLE_S)
        idle_share = (exact_cpu_s(pid) - before_s) / _IDLE_S
        cpu_s, wall_s = [0.0, 0.0], [0.0, 0.0]
        for _ in range(effort.num_paced):
            for kind, plan in enumerate((few, many)):
                before_s, began_s = exact_cpu_s(pid), time.perf_counter()
                taken_ms = await emitters.latencies_ms(1, plan)
                await asyncio.sleep(max(0.0, period_s - taken_ms[0] / 1000))
                cpu_s[kind] += exact_cpu_s(pid) - before_s
                wall_s[kind] += time.perf_counter() - began_s
    per_request = 1000 / effort.num_paced
    few_cost, many_cost = (
        _Cost(cpu * per_request, (cpu - idle_share * wall) * per_request)
        for cpu, wall in zip(cpu_s, wall_s, strict=True)
    )
    return few_cost, many_cost
