"""What happens when consumers are slow: arenas fill, requests wait, nothing grows, and only those wait that must."""

import asyncio
import itertools
from dataclasses import replace

import pytest

from antiphon.config.pipeline import WHOLE
from antiphon.errors import HandoffTimeoutError, OverloadedError, StageError
from tests.conformance.row_models import TOPOLOGIES, Fault, expected
from tests.conformance.small_server import CONNECTORS, MODES, Settings, SmallServer, small_server

CHAIN = TOPOLOGIES["three stages"]
ARENA_BYTES = {"inproc": 1024, "shm": 8 * 16_384}
"""Room for 16 rows: of 16 bytes, padded to 64 in chunks of one, or of 8 KiB."""
WANTED = {f"req-{number}": list(range(number, 40 + number)) for number in range(1, 11)}


def settings_for(mode: str, kind: str, **more: int) -> Settings:
    usual = replace(MODES[mode], kind=kind, row_width=CONNECTORS[kind], arena_bytes=ARENA_BYTES[kind])
    return replace(usual, max_inflight=len(WANTED), **more)


async def submit_all(server: SmallServer) -> None:
    for name, values in WANTED.items():
        await server.submit(values, name)


def assert_all_finished(server: SmallServer) -> None:
    for name, values in WANTED.items():
        assert (server.heard[name].outcome, server.heard[name].values) == (
            "finished",
            {"last": expected(server.pipeline, "last", values)},
        )


def assert_arenas_were_full_and_never_overfull(server: SmallServer) -> None:
    connectors = {"client": server.connector, **{r.name: r.connector for r in server.replicas.values()}}
    statistics = {name: connector.statistics() for name, connector in connectors.items()}
    assert all(one.arena_high_water_bytes <= one.arena_bytes for one in statistics.values())
    for producer in ("first/0", "middle/0"):
        assert statistics[producer].num_refused > 0, f"{producer} never waited for credit"


@pytest.mark.parametrize("max_num_seqs", [32, 2])
@pytest.mark.parametrize("kind", CONNECTORS)
@pytest.mark.parametrize("mode", MODES)
def test_ten_requests_finish_over_three_stages_though_every_arena_was_full(
    mode: str, kind: str, max_num_seqs: int
) -> None:
    """The last stage stands still until nothing moves any more, and then runs every fifth turn only."""

    async def run() -> None:
        async with small_server(CHAIN, settings_for(mode, kind, max_num_seqs=max_num_seqs)) as server:
            server.paused.add("last/0")
            await submit_all(server)
            await server.until(lambda: server.at("middle").connector.statistics().num_refused > 0, "credit runs out")
            for _ in range(100):
                await server.turn()
            for turn in itertools.count():
                if all(heard.outcome for heard in server.heard.values()):
                    break
                assert turn < 20_000
                server.paused = set() if turn % 5 == 0 else {"last/0"}
                await server.turn()
            server.paused.clear()
            assert_all_finished(server)
            assert_arenas_were_full_and_never_overfull(server)
            await server.assert_idle()

    asyncio.run(run())


@pytest.mark.parametrize("kind", CONNECTORS)
def test_a_consumer_that_stands_still_stops_its_own_requests_only(kind: str) -> None:
    """Two replicas of the last stage share every producer's arena; one of them does nothing."""

    async def run() -> None:
        settings = replace(settings_for("first chunk", kind), replicas={"last": 2}, arena_bytes=4 * ARENA_BYTES[kind])
        async with small_server(CHAIN, settings) as server:
            server.paused.add("last/0")
            await submit_all(server)
            served = {name for name in WANTED if server.replica_of(name, "last") == "last/1"}
            assert 3 <= len(WANTED) - len(served) <= 5
            await server.until_over(*served)
            waiting = [name for name in WANTED if server.heard[name].outcome is None]
            assert set(waiting) == set(WANTED) - served
            assert not any(server.heard[name].values for name in waiting)
            server.paused.clear()
            await server.until_over(*WANTED)
            assert_all_finished(server)
            await server.assert_idle()

    asyncio.run(run())


@pytest.mark.parametrize("kind", CONNECTORS)
def test_a_consumer_that_never_gives_room_fails_its_request_at_the_edges_deadline(kind: str) -> None:
    async def run() -> None:
        settings = replace(settings_for("first chunk", kind), deadline_s=1.0)
        async with small_server(CHAIN, settings) as server:
            server.paused.add("last/0")
            name = await server.submit(list(range(80)))
            await server.until_over(name)
            error = server.heard[name].outcome
            assert isinstance(error, HandoffTimeoutError)
            assert "waited 1 s for room for chunk" in error.message and name in error.message
            server.paused.clear()
            await server.assert_idle()

    asyncio.run(run())


def test_a_client_that_does_not_read_is_bounded_in_bytes_and_then_aborted() -> None:
    """Others go on; every stage lets go of the aborted request."""

    async def run() -> None:
        pipeline = TOPOLOGIES["one stage"]
        async with small_server(pipeline, Settings(num_rows_per_step=300, max_backlog_mib=1)) as server:
            name = await server.submit(list(range(300_000)))
            reader = server.heard[name].reader
            assert reader is not None
            reader.cancel()
            stream = server.heard[name].stream
            high_water_bytes = 0
            while not stream.ended:
                high_water_bytes = max(high_water_bytes, stream.backlog_bytes)
                await server.turn()
            assert (1 << 20) * 0.9 < high_water_bytes <= 1 << 20
            other = await server.submit([1, 2, 3])
            await server.until_over(other)
            assert server.heard[other].outcome == "finished"
            with pytest.raises(OverloadedError, match="the client does not read"):
                async for _ in stream:
                    pass
            await server.assert_idle()

    asyncio.run(run())


def test_a_request_whose_end_does_not_fit_on_the_client_lane_fails_at_once_and_its_stage_lives() -> None:
    """All of it is made in one step, so nothing but the lost end is left of it in the stage."""

    async def run() -> None:
        async with small_server(TOPOLOGIES["one stage"], Settings(num_rows_per_step=8)) as server:
            (replica,) = server.replicas.values()
            replica.client_lane.is_full = True
            lost = await server.submit([1, 2, 3])
            await server.until_over(lost)
            error = server.heard[lost].outcome
            assert isinstance(error, StageError) and "does not read" in error.message
            replica.client_lane.is_full = False
            other = await server.submit([1, 2, 3])
            await server.until_over(other)
            assert server.heard[other].outcome == "finished"
            await server.assert_idle()

    asyncio.run(run())


@pytest.mark.parametrize("kind", CONNECTORS)
@pytest.mark.parametrize("end", ["abort", "failure"])
def test_a_whole_payload_that_waits_for_its_end_is_never_sent_when_the_request_ends_otherwise(
    kind: str, end: str
) -> None:
    """Rows are made and lie in the cursor; the terminal chunk that follows carries none of them."""

    async def run() -> None:
        settings = replace(settings_for("all chunks", kind), plan=WHOLE)
        async with small_server(TOPOLOGIES["two stages"], settings) as server:
            first = server.at("first")
            server.faults["first"]["doomed"] = Fault.RAISE if end == "failure" else Fault.STALL
            await server.submit(list(range(40)), "doomed")
            await server.until(lambda: first.engine.statistics().num_steps > 0, "rows are made")
            if end == "abort":
                server.abort("doomed")
            await server.until_over("doomed")
            await server.assert_idle()
            statistics = first.connector.statistics()
            assert (statistics.num_chunks_put, statistics.num_bytes_put) == (1, 0)
            assert server.at("last").connector.statistics().num_bytes_received == 0

    asyncio.run(run())
