"""A stage whose device works beside the host: what a step made is sent while the next one runs, and all of it is right.

The order of launches, collections and sent frames is what counts here, not time.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from antiphon.config.pipeline import StageSpec
from antiphon.errors import RequestAbortedError
from antiphon.stage.engine.sequences import SequenceEngine
from tests.conformance.row_models import TOPOLOGIES, combine
from tests.conformance.small_server import CONNECTORS, MODES, SmallServer, small_server
from tests.unit.stage.engine.counting import CountingModel, DeviceRunner, HostRunner, after

NUM_TOKENS = 12
PROMPTS = {f"req-{number}": [number, 5 * number, 2] for number in range(1, 5)}
ARENA_BYTES = {"inproc": 1024, "shm": 8 * 16_384}


class NotedRunner(DeviceRunner):
    """Notes the frames that have been sent to clients before each launch and each collection.

    A step is over in the third turn after that of its launch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.server: SmallServer | None = None
        self.num_sent: dict[str, int] = {}

    def note(self, event: str) -> None:
        super().note(event)
        assert self.server is not None
        self.num_sent[event] = len(self.server.at("first").client_lane.sent)


class NotedHostRunner(NotedRunner, HostRunner):
    """The same, and the host computes."""


@asynccontextmanager
async def served_by(runner: NotedRunner, topology: str, mode: str, kind: str) -> AsyncIterator[SmallServer]:
    def make_engine(spec: StageSpec) -> SequenceEngine:
        return SequenceEngine(CountingModel(NUM_TOKENS), runner, replace(spec, num_kv_blocks=64))

    settings = replace(MODES[mode], kind=kind, arena_bytes=ARENA_BYTES[kind])
    async with small_server(TOPOLOGIES[topology], settings, {"first": make_engine}) as server:
        runner.server = server
        yield server
        await until(server, runner, lambda: not server.held())
        await server.assert_idle()


async def until(server: SmallServer, runner: NotedRunner, condition: object) -> None:
    """Take turns until `condition`; the device comes to the end of its step in every third one."""
    assert callable(condition)
    num_turns = 0

    def moves() -> bool:
        nonlocal num_turns
        num_turns += 1
        runner.is_over = num_turns % 3 == 0
        return bool(condition())

    await server.until(moves, "all is over")


def wanted(server: SmallServer, name: str) -> list[int]:
    """What the client gets of a request."""
    tokens = list(PROMPTS[name])
    while len(tokens) < len(PROMPTS[name]) + NUM_TOKENS - 1:
        tokens.append(after(tokens[-1]))
    is_alone = server.pipeline.name == "one"
    return tokens if is_alone else [combine("last", (token,)) for token in tokens]


def all_over(server: SmallServer) -> bool:
    return all(heard.outcome is not None for heard in server.heard.values())


def test_what_a_step_made_is_sent_after_the_next_launch_and_before_the_next_collection() -> None:
    async def run() -> None:
        runner = NotedRunner()
        async with served_by(runner, "one stage", "first chunk", "inproc") as server:
            await server.submit(PROMPTS["req-1"], "req-1")
            await until(server, runner, lambda: all_over(server))
            assert server.heard["req-1"].values == {"first": wanted(server, "req-1")}
            for step in range(1, NUM_TOKENS):
                assert runner.num_sent[f"launch {step + 1}"] == step - 1, "step is not sent yet"
                assert runner.num_sent[f"collect {step + 1}"] == step, "it was sent while the next one ran"

    asyncio.run(run())


def test_what_the_host_computed_is_sent_before_it_computes_the_next_step() -> None:
    async def run() -> None:
        runner = NotedHostRunner()
        async with served_by(runner, "one stage", "first chunk", "inproc") as server:
            await server.submit(PROMPTS["req-1"], "req-1")
            await until(server, runner, lambda: all_over(server))
            assert server.heard["req-1"].values == {"first": wanted(server, "req-1")}
            assert all(runner.num_sent[f"launch {step}"] == step - 1 for step in range(1, NUM_TOKENS + 1))

    asyncio.run(run())


@pytest.mark.parametrize("kind", CONNECTORS)
@pytest.mark.parametrize("mode", MODES)
def test_rows_are_exact_when_credit_runs_out_while_steps_run(mode: str, kind: str) -> None:
    async def run() -> None:
        runner = NotedRunner()
        async with served_by(runner, "two stages", mode, kind) as server:
            server.paused.add("last/0")
            for name, prompt in PROMPTS.items():
                await server.submit(prompt, name)
            connector = server.at("first").connector
            num_turns = 0

            def has_waited() -> bool:
                nonlocal num_turns
                num_turns += 1
                return num_turns == 200

            await until(server, runner, has_waited)
            if kind == "inproc" and mode == "first chunk":
                assert connector.statistics().num_refused > 0, "credit did not run out"
            server.paused.clear()
            await until(server, runner, lambda: all_over(server))
            for name in PROMPTS:
                assert server.heard[name].values == {"last": wanted(server, name)}

    asyncio.run(run())


@pytest.mark.parametrize("kind", CONNECTORS)
def test_a_request_that_is_aborted_while_its_step_runs_leaves_nothing_and_the_others_go_on(kind: str) -> None:
    async def run() -> None:
        runner = NotedRunner()
        async with served_by(runner, "two stages", "first chunk", kind) as server:
            for name, prompt in PROMPTS.items():
                await server.submit(prompt, name)
            await until(server, runner, lambda: runner.num_launched == 4)
            assert runner.running is not None and "req-2" in runner.batches[-1]
            server.abort("req-2")
            await server.until(lambda: server.is_stopped("req-2"), "it is stopped")
            for _ in range(3):
                await server.turn()
            assert runner.running is not None, "the same step still runs"
            await until(server, runner, lambda: all_over(server))
            assert isinstance(server.heard["req-2"].outcome, RequestAbortedError)
            for name in PROMPTS.keys() - {"req-2"}:
                assert server.heard[name].values == {"last": wanted(server, name)}

    asyncio.run(run())
