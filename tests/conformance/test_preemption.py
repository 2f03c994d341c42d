"""Requests that yield their KV cache and come back: the next stage gets every row once, whatever was computed again."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from antiphon.config.pipeline import StageSpec
from antiphon.errors import RequestAbortedError
from antiphon.messages.params import SamplingParams
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.request import Arrays, StageOutput, StageRequest
from tests.conformance.row_models import TOPOLOGIES, combine, rows_of
from tests.conformance.small_server import CONNECTORS, MODES, SmallServer, small_server

torch = pytest.importorskip("torch")

from antiphon.stage.engine.autoregressive import AutoregressiveEngine  # noqa: E402
from antiphon.stage.engine.autoregressive_model import (  # noqa: E402
    Accepted,
    KVLayout,
    SamplingRules,
    Span,
    StepTensors,
)
from antiphon.stage.runner.device import Device  # noqa: E402
from antiphon.stage.runner.paged_attention import PagedStep  # noqa: E402

VOCABULARY = 97
NUM_TOKENS = 40
NUM_BLOCKS = 6
PROMPTS = {f"req-{number}": [number, 5 * number, 2] for number in range(1, 9)}


def after(token: int) -> int:
    return (token * 5 + 3) % VOCABULARY


@dataclass
class Counting:
    """A sequence's tokens, and the positions that were computed, in order."""

    ids: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)


class CountingModel:
    """A simulated transformer: the next token depends on the last one; a position's row is its token."""

    def __init__(self) -> None:
        self.states: dict[str, Counting] = {}

    def load(self, context: ModelContext, device: Device) -> None:
        self.kv_layout = KVLayout(1, 1, 2, torch.float32)

    def open(self, request: StageRequest) -> Counting:
        return self.states.setdefault(request.request_id, Counting())

    def receive(self, request: StageRequest, state: Counting, rows: dict[str, Arrays], ended: bool) -> None:
        if "row" in rows["client"]:
            state.ids += rows["client"]["row"][:, 1].tolist()

    def rules(self, request: StageRequest, state: Counting) -> SamplingRules:
        return SamplingRules()

    def sampling(self, request: StageRequest, state: Counting) -> SamplingParams:
        return SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0)

    def num_positions(self, state: Counting) -> int:
        return len(state.ids)

    def forward(self, spans: list[Span[Counting]], step: PagedStep) -> StepTensors:
        for span in spans:
            span.state.computed += range(span.start, span.stop)
        tokens = torch.tensor([token for span in spans for token in span.state.ids[span.start : span.stop]])
        wanted = [after(span.state.ids[span.stop - 1]) for span in spans if span.samples]
        logits = torch.nn.functional.one_hot(torch.tensor(wanted, dtype=torch.int64), VOCABULARY).float()
        return StepTensors(logits.reshape(-1, VOCABULARY), {"token": tokens})

    def accept(self, batch: Sequence[Accepted[Counting]]) -> list[StageOutput]:
        return [self._accept(entry) for entry in batch]

    def _accept(self, entry: Accepted[Counting]) -> StageOutput:
        ids, new = entry.state.ids, entry.rows["token"].tolist()
        assert ids[entry.first_row : entry.first_row + len(new)] == new
        rows = rows_of(ids, entry.first_row, entry.first_row + len(new), 2)
        if entry.token is not None:
            ids.append(entry.token)
        label = np.frombuffer(entry.request.request_id.encode(), np.uint8)
        handoff = {"last": {"row": rows, "label": label}} if new else {}
        return StageOutput(handoff, finished=entry.finish_reason is not None)


class Preempting:
    """A server whose first stage has room for two requests of eight: 43 positions each share 96, five a step.

    What is computed again after a preemption overlaps in parts with what was handed off.
    """

    def __init__(self, mode: str, kind: str) -> None:
        self.settings = replace(MODES[mode], kind=kind, max_inflight=len(PROMPTS))
        self.model = CountingModel()

    def make_engine(self, spec: StageSpec) -> AutoregressiveEngine:
        tight = replace(spec, num_kv_blocks=NUM_BLOCKS, max_num_batched_tokens=5)
        self.engine = AutoregressiveEngine(self.model, ModelContext("cpu", 1, "", ""), tight)
        return self.engine

    @asynccontextmanager
    async def started(self) -> AsyncIterator[SmallServer]:
        async with small_server(TOPOLOGIES["two stages"], self.settings, {"first": self.make_engine}) as server:
            for name, prompt in PROMPTS.items():
                await server.submit(prompt, name)
            yield server
            assert self.engine.num_preemptions > 0
            await server.assert_idle()
            assert self.engine._scheduler._pool.num_free == NUM_BLOCKS

    def preempted(self) -> list[str]:
        """Requests that have been computed, in part, and wait for their turn again."""
        waiting = [sequence.request.request_id for sequence in self.engine._scheduler._waiting]
        return [name for name in waiting if self.model.states[name].computed]


def assert_finished(server: SmallServer, name: str) -> None:
    tokens = list(PROMPTS[name])
    while len(tokens) < len(PROMPTS[name]) + NUM_TOKENS - 1:
        tokens.append(after(tokens[-1]))
    assert server.heard[name].outcome == "finished"
    assert server.heard[name].values == {"last": [combine("last", (token,)) for token in tokens]}


@pytest.mark.parametrize("kind", CONNECTORS)
@pytest.mark.parametrize("mode", MODES)
def test_rows_are_exact_when_requests_are_preempted_and_computed_again(mode: str, kind: str) -> None:
    async def run() -> None:
        stage = Preempting(mode, kind)
        async with stage.started() as server:
            await server.until_over(*PROMPTS)
            for name in PROMPTS:
                assert_finished(server, name)
            assert any(len(state.computed) > len(set(state.computed)) for state in stage.model.states.values())

    asyncio.run(run())


@pytest.mark.parametrize("kind", CONNECTORS)
@pytest.mark.parametrize("mode", MODES)
def test_an_abort_while_preempted_ends_that_request_and_gives_its_place_to_the_others(mode: str, kind: str) -> None:
    async def run() -> None:
        stage = Preempting(mode, kind)
        async with stage.started() as server:
            await server.until(lambda: bool(stage.preempted()), "one is preempted")
            await server.hold_still()
            (aborted, *_) = stage.preempted()
            server.abort(aborted)
            await server.until(lambda: server.is_stopped(aborted), "it is stopped")
            server.paused.clear()
            await server.until_over(*PROMPTS)
            assert isinstance(server.heard[aborted].outcome, RequestAbortedError)
            for name in PROMPTS.keys() - {aborted}:
                assert_finished(server, name)

    asyncio.run(run())
