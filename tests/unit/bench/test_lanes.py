import importlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import uvloop

from antiphon.bench.lanes.bare import BareChain, Helper, bare_outputs_per_s
from antiphon.bench.lanes.connector import MODULE, HopProducer
from antiphon.bench.lanes.effort import QUICK, Deadline, Effort
from antiphon.bench.lanes.orchestrated import OrchestratorBench
from antiphon.bench.lanes.run import PARTS, Part, parse_parts, run_lanes
from antiphon.bench.measures import Row
from antiphon.errors import ConfigError, HandoffTimeoutError, InvalidRequestError, StageError
from antiphon.models.simulated.emitter_pipeline import EmitterPlan, Form, Heard


@pytest.fixture
def directory() -> Iterator[str]:
    """Short, because socket paths are."""
    with tempfile.TemporaryDirectory(prefix="ap-") as path:
        yield path


def test_an_emitters_plan_is_read_as_it_was_written() -> None:
    plan = EmitterPlan(7, 8192, Form.APART, Heard.LAST)
    assert EmitterPlan.parse(str(plan)) == plan


@pytest.mark.parametrize("text", ["", "hello", "1 2 3 all", "1 2 1", "-1 2 1 all", "1 2 1 some"])
def test_an_emitter_takes_nothing_but_a_plan(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="NUM_OUTPUTS"):
        EmitterPlan.parse(text)


def test_without_pyzmq_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    monkeypatch.delitem(sys.modules, "antiphon.bench.lanes.bare")
    with pytest.raises(ConfigError, match=r"pip install -e '.\[bench\]'"):
        importlib.import_module("antiphon.bench.lanes.bare")


def test_bare_consumers_get_every_output(directory: str) -> None:
    assert uvloop.run(bare_outputs_per_s(f"ipc://{directory}/bare", 50, 16)) > 0


def test_a_bare_chain_answers_every_message(directory: str) -> None:
    async def run() -> list[float]:
        async with BareChain(directory, 2) as chain:
            assert await chain.asks_per_s(200, 8) > 0
            return await chain.latencies_ms(5)

    assert len(uvloop.run(run())) == 5


def test_the_connectors_other_process_reads_every_chunk(directory: str) -> None:
    async def run() -> None:
        consumer = f"ipc://{directory}/consumer"
        async with Helper(consumer, module=MODULE):
            with HopProducer(f"ipc://{directory}/producer", consumer, Deadline(30.0)) as producer:
                for size in (1024, 1 << 20):
                    assert producer.send(300, size) > 0
                there_and_back_s, first_read_s = producer.ping(np.zeros((1, 1024), np.uint8))
                assert 0 < first_read_s < there_and_back_s

    uvloop.run(run())


def test_a_connector_whose_peer_is_not_there_is_given_up_by_name(directory: str) -> None:
    producer = HopProducer(f"ipc://{directory}/producer", f"ipc://{directory}/nobody", Deadline(0.3))
    with pytest.raises(HandoffTimeoutError, match=r"waited for the consumer until the part's 0.3 s were over"):
        producer.__enter__()
    producer.__exit__(None, None, None)


def test_the_orchestrators_process_answers_every_control_message(directory: str) -> None:
    with OrchestratorBench(directory, Deadline(30.0)) as bench:
        assert bench.messages_per_s(200) > 0
        assert bench.messages_per_s(3) > 0


def test_parts_are_named() -> None:
    assert parse_parts("") == tuple("abcdef")
    assert parse_parts("d, a") == ("d", "a")
    with pytest.raises(ConfigError, match="there is no part 'x'; there are a, b, c"):
        parse_parts("a,x")


def test_quick_measures_what_the_goals_are_about_and_whole_measures_all() -> None:
    assert set(QUICK.cells(3, 4)) == {
        (16, 0, True),
        (16, 0, False),
        (16, 8 << 10, True),
        (16, 64 << 10, True),
        (16, 1 << 20, True),
    }
    assert len(list(Effort().cells(3, 4))) == 16
    assert len(list(Effort().cells(1, 4))) == 4


def test_a_part_that_fails_or_hangs_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(_: Effort) -> list[Row]:
        raise StageError("a chunk was lost")

    async def hangs(_: Effort) -> list[Row]:
        import asyncio

        await asyncio.Event().wait()
        return []

    async def works(_: Effort) -> list[Row]:
        return [Row("works", "1/s", 2.0, 1.0)]

    for name, run in zip("abc", (fails, hangs, works), strict=True):
        monkeypatch.setitem(PARTS, name, Part(name.upper(), run))
    result = run_lanes(("a", "b", "c"), replace(QUICK, part_s=0.1), say=lambda _: None)
    assert [row.measure for row in result.report.rows] == ["works"]
    assert result.problems == ("a: A: a chunk was lost", "b: B: not over in 0.1 s")
