"""2,000 streams whose clients leave in the middle: no process may keep anything of them."""

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.bench.chaos.actions import Ask, Door, Form, Manner
from antiphon.bench.chaos.answer import End, Expected, Outcome
from antiphon.bench.chaos.client import HttpDoor, outcome_of
from tests.process.conftest import Server, eventually, start_server
from tests.process.metrics_page import assert_nothing_is_held, totals
from tests.process.relay_server import children

NUM_WARM, NUM_ALL = 1_000, 2_000
"""By then a process knows as many forms of chunks as it remembers (`connector/layout.py`)."""
NUM_AT_ONCE = 24
DEADLINE_S = 40.0
MAX_GROWTH_BYTES = 2 << 20
FORMS = [Form.CHAT_EVENTS, Form.SPOKEN_CHAT_EVENTS, Form.SPEECH_BYTES, Form.SPEECH_EVENTS]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = start_server("sim-voice", "--set", "connector.arena_mib=1")  # an arena is resident as far as it was used
    yield running
    assert running.stop() == 0


def sizes(server: Server) -> dict[str, tuple[int, int]]:
    """Process -> resident bytes and open descriptors."""
    pids = {server.process.pid: "launcher", **children(server.process.pid)}
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    return {
        name: (
            int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page_bytes,
            len(os.listdir(f"/proc/{pid}/fd")),
        )
        for pid, name in pids.items()
    }


def asks(first: int, last: int) -> list[Ask]:
    """Most leave somewhere in the first half of their answer, some before it."""
    rng = random.Random(first)
    found = []
    for number in range(first, last):
        manner = Manner.LEAVE if rng.random() < 0.9 else Manner.LEAVE_AT_ONCE
        at_bytes = rng.randrange(1, 3_000)
        found.append(Ask(0.0, number, Door.HTTP, rng.choice(FORMS), manner, num_chars=400, at_bytes=at_bytes))
    return found


async def leave_all(server: Server, wanted: list[Ask]) -> list[Outcome]:
    door, places = HttpDoor("127.0.0.1", server.port, "sim-voice"), asyncio.Semaphore(NUM_AT_ONCE)

    async def leave(ask: Ask) -> Outcome:
        async with places:
            return await outcome_of(door, ask, Expected(None, None), asyncio.get_running_loop().time, DEADLINE_S)

    return await asyncio.gather(*(leave(ask) for ask in wanted))


def test_2000_streams_whose_clients_left_leave_no_memory_no_descriptor_and_no_lease(server: Server) -> None:
    warm = asyncio.run(leave_all(server, asks(0, NUM_WARM)))
    assert_nothing_is_held(server)
    before = sizes(server)

    rest = asyncio.run(leave_all(server, asks(NUM_WARM, NUM_ALL)))
    assert {outcome.end for outcome in warm + rest} == {End.ABORTED}, [o for o in rest if o.end is not End.ABORTED][:5]
    assert_nothing_is_held(server)
    assert totals(server)["arena_used_bytes"] == 0
    assert eventually(lambda: descriptors(sizes(server)) == descriptors(before)), (before, sizes(server))
    after = sizes(server)
    grown = {name: after[name][0] - before[name][0] for name in before}
    assert after.keys() == before.keys(), "a process has died"
    assert max(grown.values()) < MAX_GROWTH_BYTES, grown


def descriptors(sizes_of_all: dict[str, tuple[int, int]]) -> dict[str, int]:
    return {name: count for name, (_, count) in sizes_of_all.items()}
