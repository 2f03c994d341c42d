"""Every way a request can go, through every shape of pipeline, in every way an edge can hand off, on every connector.

Each cell: one last message per lane, every value right, and nothing held by anybody afterwards.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from antiphon.config.pipeline import PipelineSpec
from antiphon.errors import (
    HandoffTimeoutError,
    ReplicaDiedError,
    RequestAbortedError,
    StageError,
    UndeclaredOutputError,
)
from antiphon.messages.control import StageEventKind
from tests.conformance.row_models import TOPOLOGIES, Fault, expected
from tests.conformance.small_server import CONNECTORS, MODES, Settings, SmallServer, small_server

VALUES = [7 * number + 3 for number in range(40)]
OTHER_VALUES = [13 * number + 1 for number in range(23)]
Way = Callable[[SmallServer], Awaitable[None]]
WAYS: dict[str, Way] = {}
SHORT_S = 0.05


def way(check: Way) -> Way:
    WAYS[check.__name__] = check
    return check


def entry_of(pipeline: PipelineSpec) -> str:
    return pipeline.stages[0].name


def last_of(pipeline: PipelineSpec) -> str:
    return pipeline.stages[-1].name


def finals_of(pipeline: PipelineSpec) -> list[str]:
    return list(pipeline.tasks[0].finals.values())


def assert_finished(server: SmallServer, request_id: str, values: list[int] = VALUES) -> None:
    """Every final stage said all of it, in order, and ended once."""
    heard, finals = server.heard[request_id], finals_of(server.pipeline)
    assert heard.outcome == "finished", heard.outcome
    assert heard.values == {final: expected(server.pipeline, final, values) for final in finals}
    assert heard.ends == dict.fromkeys(finals, 1)


def assert_cut(server: SmallServer, request_id: str, values: list[int] = VALUES) -> None:
    """What was said is right as far as it goes."""
    for final, said in server.heard[request_id].values.items():
        assert said == expected(server.pipeline, final, values)[: len(said)]


def error_of(server: SmallServer, request_id: str) -> Exception:
    assert_cut(server, request_id)
    outcome = server.heard[request_id].outcome
    assert isinstance(outcome, Exception), outcome
    return outcome


async def assert_served(server: SmallServer) -> None:
    """A new request finishes."""
    name = await server.submit(OTHER_VALUES)
    await server.until_over(name)
    assert_finished(server, name, OTHER_VALUES)


@way
async def finish(server: SmallServer) -> None:
    first, second = await server.submit(VALUES), await server.submit(OTHER_VALUES)
    await server.until_over(first, second)
    assert_finished(server, first)
    assert_finished(server, second, OTHER_VALUES)


@way
async def finish_twice_under_one_id(server: SmallServer) -> None:
    """The second time, the first stage's chunks are at the last one before it hears of the request."""
    await server.submit(VALUES, "again")
    await server.until_over("again")
    await server.assert_idle()
    server.paused.add(last_of(server.pipeline) + "/0")
    await server.submit(OTHER_VALUES, "again")
    for _ in range(20):
        await server.turn()
    server.paused.clear()
    last = server.at(last_of(server.pipeline))
    last.inbox.receive(0.0)
    await server.until_over("again")
    assert_finished(server, "again", OTHER_VALUES)


@way
async def finish_without_output(server: SmallServer) -> None:
    server.faults[entry_of(server.pipeline)]["quiet"] = Fault.EMPTY
    await server.submit(VALUES, "quiet")
    await server.until_over("quiet")
    heard = server.heard["quiet"]
    assert (heard.values, heard.outcome) == ({}, "finished")
    assert heard.ends == dict.fromkeys(finals_of(server.pipeline), 1)
    for stage in server.pipeline.stages:
        await server.assert_idle()
        assert server.at(stage.name).said("quiet") == [StageEventKind.RELEASED]


@way
async def preempt(server: SmallServer) -> None:
    for faults in server.faults.values():
        faults["again"] = Fault.REPLAY
    await server.submit(VALUES, "again")
    other = await server.submit(OTHER_VALUES)
    await server.until_over("again", other)
    assert_finished(server, "again")
    assert_finished(server, other, OTHER_VALUES)


async def fails_alone(server: SmallServer, guilty: str) -> None:
    server.faults[guilty]["bad"] = Fault.RAISE
    await server.submit(VALUES, "bad")
    other = await server.submit(OTHER_VALUES)
    await server.until_over("bad", other)
    error = error_of(server, "bad")
    assert isinstance(error, StageError)
    assert f"the model raised RuntimeError: {guilty} was told to raise" in str(error)
    assert_finished(server, other, OTHER_VALUES)
    await server.assert_idle()
    assert StageEventKind.FAILED in server.at(guilty).said("bad")


@way
async def model_error_in_the_first_stage(server: SmallServer) -> None:
    await fails_alone(server, entry_of(server.pipeline))


@way
async def model_error_in_the_last_stage(server: SmallServer) -> None:
    await fails_alone(server, last_of(server.pipeline))


@way
async def undeclared_output(server: SmallServer) -> None:
    """Of a stage that hands off; one that does not has nothing to be wrong about."""
    guilty = entry_of(server.pipeline)
    server.faults[guilty]["bad"] = Fault.UNDECLARED
    await server.submit(VALUES, "bad")
    other = await server.submit(OTHER_VALUES)
    await server.until_over("bad", other)
    if server.pipeline.edges:
        error = error_of(server, "bad")
        assert isinstance(error, UndeclaredOutputError)
        assert "'surprise', which it does not declare; it declares row, label" in str(error)
    else:
        assert_finished(server, "bad")
    assert_finished(server, other, OTHER_VALUES)


async def until_started(server: SmallServer) -> str:
    """Accepted; no stage has heard of it."""
    server.paused |= set(server.replicas)
    return await server.submit(VALUES)


async def until_handed_off(server: SmallServer) -> str:
    """The first stage has put chunks (or sent frames) that nobody has read."""
    entry = server.at(entry_of(server.pipeline))
    server.paused |= set(server.replicas) - {entry.name}
    name = await server.submit(VALUES)
    await server.until(
        lambda: bool(entry.connector.statistics().num_chunks_put or entry.outputs_of(name)), "the first stage has sent"
    )
    return name


async def until_waiting_for_a_chunk(server: SmallServer) -> str:
    """Every stage but the first has it and waits."""
    entry = server.at(entry_of(server.pipeline))
    server.paused.add(entry.name)
    name = await server.submit(VALUES)
    others = [replica for replica in server.replicas.values() if replica is not entry]
    await server.until(lambda: all(replica.inbox.num_held() for replica in others), "all others wait")
    return name


async def until_in_mid_stream(server: SmallServer) -> str:
    """The client has heard something, and not all."""
    name = await server.submit(VALUES)
    await server.until(
        lambda: any(replica.outputs_of(name) for replica in server.replicas.values()), "something is said"
    )
    await server.hold_still()
    return name


PHASES = {
    "before start": until_started,
    "during hand-off": until_handed_off,
    "while waiting for a chunk": until_waiting_for_a_chunk,
    "in mid-stream": until_in_mid_stream,
}


async def until_stopped(server: SmallServer, name: str) -> None:
    """The stages go on when they have been told to stop it."""
    server.hold(name)
    await server.until(lambda: server.is_stopped(name), f"{name} is stopped")
    server.paused.clear()


def abort_by_disconnect(phase: Callable[[SmallServer], Awaitable[str]]) -> Way:
    async def check(server: SmallServer) -> None:
        other = await server.submit(OTHER_VALUES)
        name = await phase(server)
        await server.hold_still()
        await server.disconnect(name)
        await until_stopped(server, name)
        await server.until_over(other)
        assert_cut(server, name)
        assert_finished(server, other, OTHER_VALUES)

    return check


def abort_by_api(phase: Callable[[SmallServer], Awaitable[str]]) -> Way:
    """The client is still there: what was made before reaches it, then it is told."""

    async def check(server: SmallServer) -> None:
        other = await server.submit(OTHER_VALUES)
        name = await phase(server)
        await server.hold_still()
        before = {stage: list(said) for stage, said in server.heard[name].values.items()}
        server.abort(name)
        server.abort(name)
        await until_stopped(server, name)
        await server.until_over(name, other)
        assert isinstance(error_of(server, name), RequestAbortedError)
        assert all(server.heard[name].values[stage][: len(said)] == said for stage, said in before.items())
        assert_finished(server, other, OTHER_VALUES)

    return check


for phase_name, phase in PHASES.items():
    WAYS[f"abort {phase_name} by disconnect"] = abort_by_disconnect(phase)
    WAYS[f"abort {phase_name} by api, twice"] = abort_by_api(phase)


@way
async def abort_while_queued(server: SmallServer) -> None:
    """The place is taken; one waiting request's client goes, another is aborted by somebody else."""
    server.paused |= set(server.replicas)
    running = await server.submit(VALUES)
    waiting = [asyncio.create_task(server.submit(VALUES, name)) for name in ("left", "aborted")]
    await server.until(lambda: server.orchestrator.num_open == 3, "two requests wait")
    waiting[0].cancel()
    server.abort("aborted")
    server.paused.clear()
    with pytest.raises(RequestAbortedError, match="aborted was aborted"):
        await waiting[1]
    await server.until_over(running)
    assert_finished(server, running)


@way
async def abort_after_the_end(server: SmallServer) -> None:
    """Before the stages have said released, and after; and of an id that never was."""
    name = await server.submit(VALUES)
    await server.until_over(name)
    server.abort(name)
    await server.disconnect(name)
    server.abort("nobody")
    await server.assert_idle()
    server.abort(name)
    await server.heard[name].stream.aclose()
    await assert_served(server)
    assert_finished(server, name)


async def killed(server: SmallServer, stage: str, name: str) -> None:
    """The replica of `stage` dies now and comes back.

    Nothing happens to a request that it was done with. One whose client has heard nothing starts again on the new
    replica, others fail.
    """
    await server.hold_still()
    victim, heard = server.at(stage), server.heard[name]
    was_done = StageEventKind.RELEASED in victim.said(name)
    had_output = heard.stream.has_output
    server.kill(victim.name)
    await server.until(lambda: server.has_died(victim.name), f"{victim.name} is known to be dead")
    server.paused.clear()
    server.start_replica(victim.name)
    await server.until_over(name)
    if was_done or not had_output:
        assert_finished(server, name)
    else:
        error = error_of(server, name)
        assert isinstance(error, ReplicaDiedError)
        assert f"{victim.name} died (signal 9)" in str(error)
    await server.until_ready()
    await assert_served(server)


@way
async def producer_killed_before_any_output(server: SmallServer) -> None:
    name = await until_handed_off(server)
    await killed(server, entry_of(server.pipeline), name)


@way
async def producer_killed_in_mid_stream(server: SmallServer) -> None:
    await killed(server, entry_of(server.pipeline), await until_in_mid_stream(server))


@way
async def consumer_killed_before_any_output(server: SmallServer) -> None:
    name = await until_handed_off(server)
    await killed(server, last_of(server.pipeline), name)


@way
async def consumer_killed_in_mid_stream(server: SmallServer) -> None:
    await killed(server, last_of(server.pipeline), await until_in_mid_stream(server))


@way
async def deadline(server: SmallServer) -> None:
    """The first stage hangs: whoever waits for it says so."""
    server.paused.add(f"{entry_of(server.pipeline)}/0")
    name = await server.submit(VALUES)
    await server.until_over(name)
    error = error_of(server, name)
    assert isinstance(error, HandoffTimeoutError)
    assert "deadline_s" in str(error) and name in str(error)
    server.paused.clear()


def settings_for(way_name: str, mode: str, kind: str, pipeline: PipelineSpec) -> Settings:
    settings = replace(MODES[mode], kind=kind, row_width=CONNECTORS[kind])
    match way_name:
        case "abort_while_queued":
            return replace(settings, max_inflight=1)
        case "deadline" if len(pipeline.stages) == 1:
            return replace(settings, output_deadline_s=SHORT_S)
        case "deadline":
            return replace(settings, deadline_s=SHORT_S)
    return settings


@pytest.mark.parametrize("kind", CONNECTORS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("way_name", WAYS)
def test_a_request_ends_once_with_the_right_values_and_leaves_nothing(
    way_name: str, topology: str, mode: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # a traceback that is kept keeps the arrays in its frames

    async def run() -> None:
        pipeline = TOPOLOGIES[topology]
        async with small_server(pipeline, settings_for(way_name, mode, kind, pipeline)) as server:
            await WAYS[way_name](server)
            await server.assert_idle()

    asyncio.run(run())
