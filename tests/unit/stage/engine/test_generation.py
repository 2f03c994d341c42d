"""The generation engine: batches, faults that stay with their request, aborts."""

from collections.abc import Callable

import numpy as np
import pytest

from antiphon.connector.base import Chunk
from antiphon.errors import AntiphonError, InvalidRequestError, StageError
from antiphon.messages.client import TokenDelta
from antiphon.messages.interstage import ChunkForm, ChunkHeader, TensorSpec
from antiphon.messages.params import RequestParams
from antiphon.stage.engine.base import StepResult
from antiphon.stage.engine.generation import GenerationEngine
from antiphon.stage.engine.generation_model import ModelContext, Slot
from antiphon.stage.engine.guard import guarded
from antiphon.stage.request import EdgeInput, StageOutput, StageRequest
from antiphon.stage.scheduler.generation import GenerationScheduler

POISON, REFUSED, CRASHING_OPEN = 666, "req-refused", "req-crash"


class Doubler:
    """Gives 2 x every code; raises for a code of 666; its state is what it has seen, or None if it keeps none."""

    def __init__(self, *, rows_per_step: int | None = None, stateless: bool = False) -> None:
        self.rows_per_step = rows_per_step
        self.stateless = stateless
        self.batches: list[list[str]] = []
        self.is_loaded = False

    def load(self, context: ModelContext) -> None:
        self.is_loaded = context.device == "cpu"

    def open(self, request: StageRequest) -> list[int] | None:
        if request.request_id == REFUSED:
            raise InvalidRequestError("not this one", param="voice")
        if request.request_id == CRASHING_OPEN:
            raise KeyError("voice")
        return None if self.stateless else []

    def has_pending(self, state: list[int] | None) -> bool:
        return False

    def step(self, batch: list[Slot[list[int] | None]]) -> list[StageOutput]:
        self.batches.append([slot.request.request_id for slot in batch])
        codes = [row.tolist() if (row := slot.row("code")) is not None else [] for slot in batch]
        if any(POISON in row for row in codes):
            raise ValueError("a poisoned code")
        for slot, row in zip(batch, codes, strict=True):
            if slot.state is not None:
                slot.state.extend(row)
        return [
            StageOutput(client=(TokenDelta([2 * code for code in row]),), finished=slot.ended)
            for slot, row in zip(batch, codes, strict=True)
        ]


class Forgetful(Doubler):
    """Breaks its contract: one output too few."""

    def step(self, batch: list[Slot[list[int] | None]]) -> list[StageOutput]:
        return super().step(batch)[:-1]


def request_of(name: str, codes: list[int] | None = None, *, ended: bool = True) -> StageRequest:
    edge = EdgeInput()
    request = StageRequest(name, 0, "task", RequestParams(), {"a": edge}, frozenset(), True)
    if codes is not None:
        feed(request, codes, ended=ended)
    return request


def feed(request: StageRequest, codes: list[int], *, ended: bool) -> None:
    rows = np.array(codes, np.int64)
    form = ChunkForm(request.request_id, 0, "a->b", "a/0", (TensorSpec("code", "int64", (), True),))
    request.input.add(Chunk(ChunkHeader(form, 0, rows=len(codes)), {"code": rows}))
    request.input.ended = ended


@pytest.fixture
def make() -> Callable[..., GenerationEngine]:
    def start(model: Doubler, max_batch_size: int = 4) -> GenerationEngine:
        scheduler = GenerationScheduler(max_num_seqs=8, max_batch_size=max_batch_size)
        engine = GenerationEngine(model, ModelContext("cpu", 1, "", ""), scheduler)
        engine.startup()
        assert model.is_loaded
        return engine

    return start


def tokens(results: list[StepResult]) -> dict[str, list[int] | AntiphonError]:
    made: dict[str, list[int] | AntiphonError] = {}
    for result in results:
        if isinstance(result.output, AntiphonError):
            made[result.request.request_id] = result.output
        else:
            (delta,) = result.output.client
            assert isinstance(delta, TokenDelta)
            made[result.request.request_id] = delta.token_ids
    return made


def test_a_batch_gives_every_request_its_own_output_and_those_that_end_leave(make) -> None:
    engine = make(Doubler())
    engine.add(request_of("req-1", [1, 2]))
    engine.add(request_of("req-2", [5], ended=False))
    assert engine.has_work()
    assert tokens(engine.step()) == {"req-1": [2, 4], "req-2": [10]}
    assert engine.statistics().num_running == 1
    assert not engine.has_work(), "req-2 has no rows now"


def test_steps_their_batches_and_the_first_step_of_each_request_are_counted(make) -> None:
    engine = make(Doubler(), max_batch_size=2)
    requests = [request_of(f"req-{number}", [number]) for number in range(3)]
    for request in requests:
        engine.add(request)
    engine.step()
    assert [request.timeline.first_step_s > 0 for request in requests] == [True, True, False]
    engine.step()
    assert requests[2].timeline.first_step_s > requests[0].timeline.first_step_s
    counted = engine.statistics()
    assert (counted.num_steps, counted.max_running) == (2, 8)
    assert counted.meter is not None
    assert (counted.meter.batch_sizes.count, counted.meter.batch_sizes.sum) == (2, 3)
    assert counted.busy_s == counted.meter.durations.sum > 0


def test_rows_per_step_bounds_what_one_step_takes(make) -> None:
    engine = make(Doubler(rows_per_step=2))
    engine.add(request_of("req-1", [1, 2, 3]))
    assert tokens(engine.step()) == {"req-1": [2, 4]}
    assert tokens(engine.step()) == {"req-1": [6]}
    assert not engine.has_work()


def test_a_request_without_rows_waits_and_one_that_ended_without_rows_is_still_run_once(make) -> None:
    engine = make(Doubler())
    request = request_of("req-1")
    engine.add(request)
    assert not engine.has_work()
    request.input.ended = True
    assert engine.has_work()
    (result,) = engine.step()
    assert isinstance(result.output, StageOutput) and result.output.finished
    assert not engine.has_work()


def test_a_request_that_makes_the_model_raise_fails_alone_and_its_batch_mates_get_their_rows(make) -> None:
    model = Doubler()
    engine = make(model)
    for name, codes in {"req-1": [1], "req-2": [POISON], "req-3": [3, 4]}.items():
        engine.add(request_of(name, codes))
    results = tokens(engine.step())
    error = results.pop("req-2")
    assert results == {"req-1": [2], "req-3": [6, 8]}
    assert isinstance(error, StageError)
    assert error.message == "req-2: the model raised ValueError: a poisoned code"
    assert model.batches == [["req-1", "req-2", "req-3"], ["req-1"], ["req-2"], ["req-3"]]
    assert engine.statistics().num_running == 0


def test_batch_mates_of_a_fault_go_on_with_a_state_that_saw_each_row_once(make) -> None:
    engine = make(Doubler())
    mate = request_of("req-1", [1], ended=False)
    engine.add(mate)
    engine.add(request_of("req-2", [POISON]))
    engine.step()
    feed(mate, [7], ended=True)
    state = engine._jobs["req-1"].state
    assert tokens(engine.step()) == {"req-1": [14]}
    assert state == [1, 7]


def test_an_exception_that_cannot_say_what_it_is_fails_its_request_like_any_other() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    def raise_it() -> None:
        raise Mute

    request = StageRequest("req-1", 0, "speech", RequestParams(), {}, frozenset(), True)
    error = guarded([request], raise_it)
    assert isinstance(error, StageError) and "req-1: the model raised" in error.message and "Mute" in error.message


def test_a_model_that_makes_too_few_outputs_fails_its_requests_and_not_the_process(make) -> None:
    engine = make(Forgetful())
    engine.add(request_of("req-1", [1]))
    engine.add(request_of("req-2", [2]))
    results = tokens(engine.step())
    assert set(results) == {"req-1", "req-2"}
    for error in results.values():
        assert isinstance(error, StageError)
        assert "0 outputs for 1 requests" in error.message


def test_a_model_that_keeps_no_state_lets_its_requests_go_all_the_same(make) -> None:
    engine = make(Doubler(stateless=True))
    engine.add(request_of("req-1", [1]))
    assert tokens(engine.step()) == {"req-1": [2]}
    assert engine.statistics().num_running == 0
    assert not engine.has_work()


def test_a_request_the_model_cannot_open_is_refused_with_its_own_error_and_leaves_nothing(make) -> None:
    engine = make(Doubler())
    with pytest.raises(InvalidRequestError, match="not this one"):
        engine.add(request_of(REFUSED, [1]))
    with pytest.raises(StageError, match="req-crash: the model raised KeyError: 'voice'"):
        engine.add(request_of(CRASHING_OPEN, [1]))
    assert not engine.has_work()
    assert engine.statistics().num_waiting == 0


def test_an_aborted_request_is_not_run_again_and_others_are(make) -> None:
    engine = make(Doubler(rows_per_step=1))
    engine.add(request_of("req-1", [1, 2]))
    engine.add(request_of("req-2", [5, 6]))
    engine.step()
    engine.abort("req-1")
    engine.abort("req-1")
    assert tokens(engine.step()) == {"req-2": [12]}
    assert engine.statistics().num_running == 0


def test_a_blocked_request_is_no_work(make) -> None:
    engine = make(Doubler())
    request = request_of("req-1", [1])
    engine.add(request)
    request.is_blocked = True
    assert not engine.has_work()
    request.is_blocked = False
    assert engine.has_work()


class Unsure(Doubler):
    """Raises when it is asked whether a state that has seen 13 has something pending."""

    def has_pending(self, state: list[int] | None) -> bool:
        if state and 13 in state:
            raise IndexError("nothing is that long")
        return False


def test_a_model_that_raises_in_has_pending_fails_that_request_and_no_other(
    make: Callable[..., GenerationEngine],
) -> None:
    engine = make(Unsure())
    engine.add(request_of("req-bad", [13], ended=False))
    good = request_of("req-good", [1], ended=False)
    engine.add(good)
    assert tokens(engine.step()) == {"req-bad": [26], "req-good": [2]}
    assert engine.has_work()
    (result,) = engine.step()
    assert result.request.request_id == "req-bad"
    assert isinstance(result.output, StageError)
    assert "req-bad: the model raised IndexError: nothing is that long" in result.output.message
    assert not engine.has_work()
    feed(good, [5], ended=True)
    assert tokens(engine.step()) == {"req-good": [10]}
    assert (engine.statistics().num_running, engine.statistics().num_waiting, engine.has_work()) == (0, 0, False)


class Careless(Doubler):
    """Makes nothing at all of a 7."""

    def step(self, batch: list[Slot[list[int] | None]]) -> list[StageOutput]:
        outputs = super().step(batch)
        return [None if slot.state == [7] else output for slot, output in zip(batch, outputs, strict=True)]  # type: ignore[misc]


def test_what_is_no_stage_output_fails_its_request_only_and_no_slot_is_run_twice(
    make: Callable[..., GenerationEngine],
) -> None:
    model = Careless()
    engine = make(model)
    engine.add(request_of("req-bad", [7]))
    engine.add(request_of("req-good", [1]))
    made = tokens(engine.step())
    assert made["req-good"] == [2]
    assert isinstance(made["req-bad"], StageError)
    assert "req-bad: the model made a NoneType where a StageOutput was expected" in made["req-bad"].message
    assert model.batches == [["req-bad", "req-good"]]
