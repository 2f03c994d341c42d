"""Which of a request's messages wake the orchestrator: all that somebody waits for, and no more."""

import asyncio

from antiphon.config.pipeline import StartWhen
from antiphon.messages.control import StageEventKind
from tests.conformance.row_models import TOPOLOGIES, Fault
from tests.conformance.small_server import Settings, small_server

VALUES = list(range(40))


def test_a_finished_request_is_released_in_a_hurry_by_its_last_stage_only() -> None:
    async def run() -> None:
        async with small_server(TOPOLOGIES["three stages"], Settings()) as server:
            name = await server.submit(VALUES)
            await server.until_over(name)
            await server.assert_idle()
            assert server.at("first").said_to(name) == [server.unhurried.address]
            assert server.at("middle").said_to(name) == [server.unhurried.address]
            assert server.at("last").said_to(name) == [server.inlet.address]

    asyncio.run(run())


def test_failures_aborts_and_all_that_follows_are_told_in_a_hurry() -> None:
    async def run() -> None:
        async with small_server(TOPOLOGIES["three stages"], Settings()) as server:
            server.faults["middle"]["bad"] = Fault.RAISE
            await server.submit(VALUES, "bad")
            await server.until_over("bad")
            server.hold("left")
            await server.submit(VALUES, "left")
            await server.disconnect("left")
            await server.assert_idle()
            for name in ("bad", "left"):
                assert set(server.at("middle").said_to(name)) == {server.inlet.address}
                assert set(server.at("last").said_to(name)) == {server.inlet.address}
            assert server.at("first").said_to("left") == [server.inlet.address]

    asyncio.run(run())


def test_that_a_finished_request_finds_no_room_for_its_rows_is_told_in_a_hurry() -> None:
    async def run() -> None:
        values = list(range(200))  # of 16 bytes each on an edge
        settings = Settings(StartWhen.ALL_CHUNKS, arena_bytes=1024, num_rows_per_step=len(values), deadline_s=0.5)
        async with small_server(TOPOLOGIES["two stages"], settings) as server:
            server.paused.add("last/0")
            name = await server.submit(values)
            await server.until_over(name)
            first = server.at("first")
            assert first.said(name)[0] is StageEventKind.FAILED
            server.paused.clear()
            await server.assert_idle()
            assert first.said(name) == [StageEventKind.FAILED, StageEventKind.RELEASED]
            assert set(first.said_to(name)) == {server.inlet.address}

    asyncio.run(run())


def test_a_replica_that_leaves_releases_in_a_hurry() -> None:
    async def run() -> None:
        async with small_server(TOPOLOGIES["three stages"], Settings()) as server:
            name = await server.submit(VALUES)
            server.at("first").loop.stop()
            await server.until_over(name)
            await server.assert_idle()
            assert server.at("first").said_to(name) == [server.inlet.address]

    asyncio.run(run())
