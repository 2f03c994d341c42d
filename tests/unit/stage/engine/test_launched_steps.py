"""A step that a device works on while requests come, go on arriving, and end."""

import numpy as np
import pytest

from antiphon.config.pipeline import EngineKind, StageSpec
from antiphon.connector.base import Chunk
from antiphon.errors import StageError
from antiphon.messages.interstage import ChunkForm, ChunkHeader, TensorSpec
from antiphon.messages.params import RequestParams
from antiphon.stage.engine.base import StepResult
from antiphon.stage.engine.sequences import SequenceEngine
from antiphon.stage.request import EdgeInput, StageOutput, StageRequest
from tests.unit.stage.engine.counting import CountingModel, DeviceRunner, HostRunner, after

SPEC = StageSpec("toy", EngineKind.AUTOREGRESSIVE, "", max_num_seqs=8, max_num_batched_tokens=64, num_kv_blocks=16)
NUM_TOKENS = 3


class Served:
    """An engine of sequences that count."""

    def __init__(self, runner: DeviceRunner) -> None:
        self.runner = runner
        self.engine = SequenceEngine(CountingModel(NUM_TOKENS), runner, SPEC)

    def add(self, name: str, prompt: list[int], *, ends: bool = True) -> EdgeInput:
        edge = EdgeInput()
        push(edge, prompt, ends=ends)
        self.engine.add(StageRequest(name, 0, "chat", RequestParams(), {"client": edge}, frozenset(), is_final=True))
        return edge

    def step(self, *, is_over: bool) -> list[StepResult]:
        """One step of the engine, before or after the device has come to the end of its own."""
        self.runner.is_over = is_over
        return self.engine.step()

    def run(self) -> list[StepResult]:
        """Until no request is left."""
        results = []
        while self.num_requests:
            results += self.step(is_over=True)
        return results

    @property
    def num_requests(self) -> int:
        counted = self.engine.statistics()
        return counted.num_running + counted.num_waiting

    @property
    def num_kv_blocks_used(self) -> int:
        return self.engine.statistics().num_kv_blocks_used


def push(edge: EdgeInput, tokens: list[int], *, ends: bool) -> None:
    rows = np.array([range(len(tokens)), tokens], np.int64).T
    form = ChunkForm("", 0, "", "", (TensorSpec("row", "int64", (2,), True),))
    edge.ended = ends
    edge.add(Chunk(ChunkHeader(form, 0, rows=len(tokens)), {"row": rows}))


@pytest.fixture
def served() -> Served:
    return Served(DeviceRunner())


def said(results: list[StepResult]) -> dict[str, list[str]]:
    """Request -> what its client gets of these results."""
    made: dict[str, list[str]] = {}
    for result in results:
        assert isinstance(result.output, StageOutput)
        made.setdefault(result.request.request_id, []).extend(delta.text for delta in result.output.client)
    return made


def answer(prompt: list[int]) -> list[str]:
    """All that a request of that prompt gets."""
    tokens = list(prompt)
    for _ in range(NUM_TOKENS - 1):
        tokens.append(after(tokens[-1]))
    return [f"{token} " for token in tokens]


def test_the_next_step_is_launched_before_what_the_last_one_made_is_given(served: Served) -> None:
    served.add("req-1", [5, 6])
    assert served.step(is_over=False) == []
    (result,) = served.step(is_over=True)
    assert said([result]) == {"req-1": ["5 ", "6 "]}
    assert served.runner.events == ["launch 1", "collect 1", "launch 2"]


def test_there_is_nothing_to_do_while_the_device_works(served: Served) -> None:
    served.add("req-1", [5, 6])
    served.step(is_over=False)
    assert not served.engine.has_work()
    served.runner.is_over = True
    assert served.engine.has_work()


def test_what_the_host_computes_is_given_before_the_next_step_is_computed() -> None:
    served = Served(HostRunner())
    served.add("req-1", [5, 6])
    for number in range(1, NUM_TOKENS + 1):
        assert served.engine.has_work()
        (result,) = served.engine.step()
        assert said([result])["req-1"]
        assert served.runner.num_launched == number
    assert not served.engine.has_work()


def test_a_request_that_comes_while_a_step_runs_is_in_the_next_one_and_one_that_has_finished_is_not(
    served: Served,
) -> None:
    served.add("req-1", [5])
    results = served.step(is_over=False)
    for number in range(2, 2 + NUM_TOKENS):
        served.add(f"req-{number}", [number])
        results += served.step(is_over=True)
    results += served.run()
    assert served.runner.batches[: NUM_TOKENS + 1] == [
        ["req-1"],
        ["req-1", "req-2"],
        ["req-1", "req-2", "req-3"],
        ["req-2", "req-3", "req-4"],
    ]
    assert said(results) == {
        "req-1": answer([5]),
        **{f"req-{number}": answer([number]) for number in range(2, 2 + NUM_TOKENS)},
    }


def test_rows_are_taken_in_while_a_step_runs(served: Served) -> None:
    edge = served.add("req-1", [1], ends=False)
    served.add("req-2", [2])
    served.step(is_over=False)
    push(edge, [7], ends=True)
    assert served.engine.has_work()
    assert served.step(is_over=False) == []
    assert edge.num_rows == 0 and served.runner.events == ["launch 1"]
    results = served.step(is_over=True)
    assert served.runner.batches == [["req-2"], ["req-2", "req-1"]]
    assert said(results + served.run()) == {"req-1": answer([1, 7]), "req-2": answer([2])}


def test_a_request_that_ends_while_its_step_runs_gets_nothing_of_it_and_keeps_nothing(served: Served) -> None:
    served.add("req-1", [1])
    served.add("req-2", [2])
    served.step(is_over=False)
    served.engine.abort("req-1")
    assert said(served.run()) == {"req-2": answer([2])}
    assert served.num_kv_blocks_used == 0


def test_a_request_that_begins_again_under_its_id_gets_nothing_of_a_step_before(served: Served) -> None:
    served.add("req-1", [1])
    served.step(is_over=False)
    served.engine.abort("req-1")
    served.add("req-1", [2])
    assert said(served.run()) == {"req-1": answer([2])}


def test_when_all_have_ended_the_step_that_runs_is_the_last(served: Served) -> None:
    served.add("req-1", [1])
    served.step(is_over=False)
    served.engine.abort("req-1")
    assert served.step(is_over=True) == []
    assert not served.engine.has_work()
    assert served.runner.running is None and served.runner.num_launched == 1


def test_a_step_that_ends_in_an_error_is_repeated_alone_for_each_that_is_still_there(served: Served) -> None:
    served.runner.guilty = {"req-2"}
    for number in (1, 2, 3):
        served.add(f"req-{number}", [number])
    served.step(is_over=False)
    served.engine.abort("req-3")
    results = served.run()
    (error,) = [result for result in results if result.request.request_id == "req-2"]
    assert isinstance(error.output, StageError) and "a fault of the device" in error.output.message
    assert said([result for result in results if result is not error]) == {"req-1": answer([1])}
    assert served.num_kv_blocks_used == 0


def test_a_step_counts_from_its_launch_to_its_collection(served: Served) -> None:
    served.add("req-1", [1])
    served.step(is_over=False)
    served.step(is_over=False)
    assert served.engine.statistics().num_steps == 0
    served.run()
    meter = served.engine.statistics().meter
    assert meter is not None
    assert (meter.num_steps, meter.batch_sizes.sum) == (NUM_TOKENS, NUM_TOKENS)
