"""Parts a, b, c of `bench lanes`: outputs per second to per-request consumers, idle replicas, trivial stages.

In: an effort. Out: rows. Does not know: how rows are shown, or what the other parts measure.
"""

import tempfile
from contextlib import AsyncExitStack
from statistics import median

from antiphon.bench.lanes.bare import BareChain, bare_outputs_per_s, memcpy_per_s
from antiphon.bench.lanes.effort import Effort, at_least, at_most
from antiphon.bench.lanes.emitting import Emitters
from antiphon.bench.measures import Bound, Goal, Row
from antiphon.models.simulated.emitter_pipeline import EmitterPlan, Form, Heard

_KIB, _MIB = 1 << 10, 1 << 20
_UNIT = "out/s"
_WARM_UP_OUTPUTS = 20
_BARE_OUTPUTS = 400_000
_NUM_IDLE = 11
_NUM_CONCURRENT = 32
_NUM_CHUNKS = 100
_ROWS_OF_THREE = 2 / 3
"""Of the outputs of three stages, those that a row goes with: the last stage hands nothing off."""

_TEXT_GOALS = {0: at_least(200_000), 8 * _KIB: at_least(150_000)}
_MEMCPY_GOALS = {64 * _KIB: Goal(Bound.AT_LEAST, 0.5), _MIB: Goal(Bound.AT_LEAST, 0.6)}
_TOKENS_GOAL = Goal(Bound.AT_LEAST, 600 / 1850)
_ONE_GOAL = Goal(Bound.AT_LEAST, 150 / 450)
_IDLE_GOAL = Goal(Bound.AT_LEAST, 0.9)
_REQUEST_GOALS = {0: (at_least(3000), at_most(0.8)), _MIB: (at_least(1500), at_most(1.5))}
_CHUNK_GOALS = {_KIB: at_least(60_000), 64 * _KIB: at_least(20_000)}


async def outputs(effort: Effort) -> list[Row]:
    """Part a. The reference is a bare socket that carries the same number of outputs per frame, or memcpy alone."""
    bare = {batch: await _bare(batch, effort) for batch in (1, 16)}
    memcpy = {size: _median_memcpy(size, effort) for size in (8 * _KIB, 64 * _KIB, _MIB)}
    rows = []
    for num_stages, num_replicas in effort.shapes:
        async with Emitters(num_replicas, num_stages=num_stages) as emitters:
            for batch, row_bytes, is_text in effort.cells(num_stages, num_replicas):
                form = Form.TEXT if is_text else Form.TOKENS
                plan = EmitterPlan(_WARM_UP_OUTPUTS, row_bytes, form, Heard.ALL if num_stages > 1 else Heard.FIRST)
                ours = await _outputs_per_s(emitters, num_replicas * batch, plan, effort)
                reference = memcpy[row_bytes] / _ROWS_OF_THREE if row_bytes else bare[batch]
                rows.append(_output_row(emitters, batch, plan, ours, reference))
    return rows


def _output_row(emitters: Emitters, batch: int, plan: EmitterPlan, ours: float, reference: float) -> Row:
    replicas, is_full = str(emitters.num_replicas), emitters.num_stages > 1 and emitters.num_replicas > 1 and batch > 1
    shape = ":".join([replicas] * emitters.num_stages)
    payload = f", {_size(plan.row_bytes)} rows" if emitters.num_stages > 1 else ""
    against = "memcpy" if plan.row_bytes else "bare socket"
    kind = "text" if plan.is_text else "tokens"
    goal: Goal | None = None
    if is_full and plan.row_bytes in _MEMCPY_GOALS:
        goal = _MEMCPY_GOALS[plan.row_bytes]
    elif is_full and not plan.is_text:
        goal = None if plan.row_bytes else _TOKENS_GOAL
    elif is_full:
        goal = _TEXT_GOALS[plan.row_bytes]
    elif (emitters.num_stages, emitters.num_replicas, batch) == (1, 1, 1):
        goal = _ONE_GOAL
    return Row(f"a: {shape}, batch {batch}{payload}, {kind} / {against}", _UNIT, ours, reference, goal)


async def idle_replicas(effort: Effort) -> list[Row]:
    """Part b: one busy replica beside 11 idle ones, and alone, in turns."""
    beside: list[float] = []
    alone: list[float] = []
    async with Emitters(1 + _NUM_IDLE, arena_mib=1) as many, Emitters(1, arena_mib=1) as one:
        plan = EmitterPlan(_WARM_UP_OUTPUTS, 0, Form.TOKENS, Heard.FIRST)
        plan = await one.fitting(1, plan, effort.seconds)
        await many.outputs_per_s(1, plan)
        for _ in range(effort.repeats):
            beside.append(await many.outputs_per_s(1, plan))
            alone.append(await one.outputs_per_s(1, plan))
    label = f"b: one busy replica beside {_NUM_IDLE} idle ones / alone"
    return [Row(label, _UNIT, median(beside), median(alone), _IDLE_GOAL)]


async def trivial_stages(effort: Effort) -> list[Row]:
    """Part c: three stages that make one output each, or 100; the reference is a message through three bare relays."""
    rows = []
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="lanes-"))
        emitters = await stack.enter_async_context(Emitters(1, num_stages=3))
        chain = await stack.enter_async_context(BareChain(directory, 3))
        bare_rate = await chain.asks_per_s(effort.num_requests * 10, _NUM_CONCURRENT)
        bare_ms = median(await chain.latencies_ms(effort.num_alone))
        for size, (rate_goal, p50_goal) in _REQUEST_GOALS.items():
            plan = EmitterPlan(1, size, form=Form.TOKENS, heard=Heard.LAST)
            rate, p50_ms = await _request_figures(emitters, plan, effort)
            name = f"c: 3 stages, {_size(size)} hand-offs"
            rows.append(Row(f"{name}, {_NUM_CONCURRENT} concurrent / bare relays", "req/s", rate, bare_rate, rate_goal))
            rows.append(Row(f"{name}, p50 alone / bare relays", "ms", p50_ms, bare_ms, p50_goal))
        bare = await _bare(1, effort)
        for size, goal in _CHUNK_GOALS.items():
            plan = EmitterPlan(_NUM_CHUNKS, size, form=Form.TOKENS, heard=Heard.LAST)
            await emitters.requests_per_s(effort.num_streams, _NUM_CONCURRENT, plan)  # the arenas' pages, see fitting
            rates = [
                await emitters.requests_per_s(effort.num_streams, _NUM_CONCURRENT, plan) for _ in range(effort.repeats)
            ]
            label = f"c: {_NUM_CHUNKS} chunks of {_size(size)} each, {_NUM_CONCURRENT} concurrent / bare socket"
            rows.append(Row(label, "chunks/s", median(rates) * _NUM_CHUNKS, bare, goal))
    return rows


async def _request_figures(emitters: Emitters, plan: EmitterPlan, effort: Effort) -> tuple[float, float]:
    """Requests per second with 32 concurrent, and the median of one alone in ms."""
    await emitters.requests_per_s(_NUM_CONCURRENT, _NUM_CONCURRENT, plan)
    rates = [await emitters.requests_per_s(effort.num_requests, _NUM_CONCURRENT, plan) for _ in range(effort.repeats)]
    return median(rates), median(await emitters.latencies_ms(effort.num_alone, plan))


async def _outputs_per_s(emitters: Emitters, num_requests: int, plan: EmitterPlan, effort: Effort) -> float:
    plan = await emitters.fitting(num_requests, plan, effort.seconds)
    return median([await emitters.outputs_per_s(num_requests, plan) for _ in range(effort.repeats)])


async def _bare(batch: int, effort: Effort) -> float:
    figures = []
    with tempfile.TemporaryDirectory(prefix="lanes-") as directory:
        for number in range(effort.repeats):
            address = f"ipc://{directory}/bare.{number}"
            figures.append(await bare_outputs_per_s(address, _BARE_OUTPUTS // batch, batch))
    return median(figures)


def _median_memcpy(size: int, effort: Effort) -> float:
    return median([memcpy_per_s(size) for _ in range(effort.repeats)])


def _size(num_bytes: int) -> str:
    if num_bytes >= _MIB:
        return f"{num_bytes // _MIB} MiB"
    return f"{num_bytes // _KIB} KiB" if num_bytes else "0 byte"
