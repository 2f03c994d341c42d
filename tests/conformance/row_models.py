"""Simulated stages whose rows show every lost, doubled or swapped one, and pipelines of them.

In: rows [n, width] int64: position, then the value width - 1 times. Out: the same with other values; TextDelta or
AudioChunk where a stage is final. Does not know: processes or connectors; `expected` computes the same alone.
"""

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from antiphon.config.pipeline import (
    CLIENT,
    ClientKind,
    EdgeSpec,
    EngineKind,
    Lane,
    Layout,
    Modality,
    OutputSpec,
    PipelineSpec,
    Policy,
    StageSpec,
    TaskSpec,
)
from antiphon.config.pipeline_check import check_pipeline
from antiphon.errors import StageError
from antiphon.messages.client import AudioChunk, ClientData, TextDelta
from antiphon.messages.params import RequestParams
from antiphon.messages.payload import EntryPayload
from antiphon.messages.tasks import ChatInput, TaskInput
from antiphon.stage.engine.generation_model import ModelContext, Slot
from antiphon.stage.engine.guard import one_by_one
from antiphon.stage.request import StageOutput, StageRequest

FAULT_ROW = 4
SAMPLE_RATE = 24_000
_MODULUS = 30_011  # values fit an int16 sample


class Fault(StrEnum):
    """What a stage does to a request: nothing, its model raises, it makes what it may not, rows again, or no more.

    STALL: it makes FAULT_ROW rows and then no more.
    """

    EMPTY = "empty"
    RAISE = "raise"
    UNDECLARED = "undeclared"
    REPLAY = "replay"
    HOLD = "hold"
    STALL = "stall"


def pipeline(name: str, edges: tuple[tuple[str, str], ...], finals: dict[Modality, str]) -> PipelineSpec:
    """A pipeline of RowModels; the first edge's producer is the entry."""
    names = list(dict.fromkeys([*(stage for edge in edges for stage in edge), *finals.values()]))
    entry = names[0]
    names.sort(key=lambda stage: _depth(stage, edges))
    producers = {producer for producer, _ in edges}
    stages = tuple(
        _stage(stage, stage in producers, [m for m, final in finals.items() if final == stage]) for stage in names
    )
    task = TaskSpec("chat", {Modality.TEXT: entry}, finals)
    specs = tuple(EdgeSpec(producer, consumer, ("row", "label")) for producer, consumer in edges)
    made = PipelineSpec(name, stages, specs, (task,), frontend="tests.conformance.row_models:RowFrontend")
    check_pipeline(made)
    return made


def _depth(stage: str, edges: tuple[tuple[str, str], ...]) -> int:
    return max((1 + _depth(producer, edges) for producer, consumer in edges if consumer == stage), default=0)


def _stage(name: str, hands_off: bool, modalities: list[Modality]) -> StageSpec:
    outputs = []
    if hands_off:
        outputs.append(OutputSpec("row", Lane.HANDOFF, "int64", (None,)))
        outputs.append(OutputSpec("label", Lane.HANDOFF, "uint8", layout=Layout.WHOLE, policy=Policy.REPLACE))
    if Modality.TEXT in modalities:
        outputs.append(OutputSpec("text", Lane.CLIENT, "uint8", client=ClientKind.TEXT))
    if Modality.AUDIO in modalities:
        outputs.append(OutputSpec("audio", Lane.CLIENT, "int16", client=ClientKind.AUDIO))
    return StageSpec(name, EngineKind.GENERATION, "tests.conformance.row_models:RowModel", tuple(outputs))


_TEXT = {Modality.TEXT: "last"}
TOPOLOGIES = {
    "one stage": pipeline("one", (), {Modality.TEXT: "first"}),
    "two stages": pipeline("two", (("first", "last"),), _TEXT),
    "three stages": pipeline("three", (("first", "middle"), ("middle", "last")), _TEXT),
    "text and audio": pipeline("both", (("first", "last"),), {Modality.TEXT: "first", Modality.AUDIO: "last"}),
    "branch and join": pipeline(
        "diamond", (("first", "left"), ("first", "right"), ("left", "last"), ("right", "last")), _TEXT
    ),
}


def expected(spec: PipelineSpec, final: str, values: list[int]) -> list[int]:
    """What the client must get of `final`."""
    producers = sorted(edge.producer for edge in spec.edges if edge.consumer == final)
    inputs = [expected(spec, producer, values) for producer in producers] or [values]
    return [combine(final, column) for column in zip(*inputs, strict=True)]


def combine(stage: str, inputs: tuple[int, ...]) -> int:
    """A stage's value of one row; its inputs are not exchangeable."""
    return (3 * sum(value * weight for weight, value in enumerate(inputs, 1)) + len(stage)) % _MODULUS


@dataclass
class RowState:
    """Values heard per producer, values made, and where a repetition stands (None: none has begun)."""

    heard: dict[str, list[int]]
    made: list[int] = field(default_factory=list)
    width: int = 2
    repeated: int | None = None
    is_emptied: bool = False

    @property
    def num_ready(self) -> int:
        return 0 if self.is_emptied else min(map(len, self.heard.values())) - len(self.made)

    @property
    def is_repeating(self) -> bool:
        return self.repeated is not None and self.repeated < len(self.made)


class RowModel:
    """A stage of the pipelines above. `faults`: request id -> what happens to it here."""

    rows_per_step: int | None = None

    def __init__(self, spec: StageSpec, faults: dict[str, Fault], num_rows_per_step: int) -> None:
        self.stage = spec.name
        self.speaks = ClientKind.AUDIO in spec.client_kinds
        self.faults = faults
        self.num_rows_per_step = num_rows_per_step

    def load(self, context: ModelContext) -> None:
        """Nothing to load."""

    def open(self, request: StageRequest) -> RowState:
        return RowState({producer: [] for producer in request.inputs})

    def has_pending(self, state: RowState) -> bool:
        return state.num_ready > 0 or state.is_repeating

    def step(self, batch: list[Slot[RowState]]) -> list[StageOutput]:
        for slot in batch:  # before any state changes, as the engine runs the batch again without the guilty
            if self.faults.get(slot.request.request_id) is Fault.RAISE and len(slot.state.made) >= FAULT_ROW:
                raise RuntimeError(f"{self.stage} was told to raise")
        return one_by_one(batch, self._step)

    def _step(self, slot: Slot[RowState]) -> StageOutput:
        state, name = slot.state, slot.request.request_id
        for producer, arrays in slot.rows.items():
            if "row" in arrays:
                self._hear(slot, producer, arrays["row"])
        if self.faults.get(name) is Fault.HOLD:
            return StageOutput()
        if self.faults.get(name) is Fault.STALL and len(state.made) >= FAULT_ROW:
            return StageOutput()
        if self.faults.get(name) is Fault.EMPTY:
            state.is_emptied = True
            return StageOutput(finished=slot.ended)
        if self.faults.get(name) is Fault.REPLAY and state.repeated is None and len(state.made) >= FAULT_ROW:
            return self._repeat(slot, 1, FAULT_ROW - 1)
        first = len(state.made)
        stop = first + min(state.num_ready, self.num_rows_per_step)
        columns = [[state.heard[producer][row] for producer in sorted(state.heard)] for row in range(first, stop)]
        state.made += [combine(self.stage, tuple(column)) for column in columns]
        start = first if state.repeated is None else state.repeated
        state.repeated = None if state.repeated is None else len(state.made)
        is_finished = slot.ended and state.num_ready == 0
        return self._output(slot, start, client_from=first, is_finished=is_finished)

    def _repeat(self, slot: Slot[RowState], start: int, stop: int) -> StageOutput:
        """Rows that were made before and none that is new; the next step goes on from `stop`."""
        slot.state.repeated = stop
        rows = rows_of(slot.state.made, start, stop, slot.state.width)
        return StageOutput(
            {c: {"row": rows.copy()} for c in slot.request.consumers}, first_rows=self._from(slot, start)
        )

    def _output(self, slot: Slot[RowState], start: int, *, client_from: int, is_finished: bool) -> StageOutput:
        made, request = slot.state.made, slot.request
        handoff = {}
        if len(made) > start:
            label = np.frombuffer(request.request_id.encode(), np.uint8)
            rows = rows_of(made, start, len(made), slot.state.width)
            handoff = {consumer: {"row": rows.copy(), "label": label} for consumer in request.consumers}
        if self.faults.get(request.request_id) is Fault.UNDECLARED and len(made) > FAULT_ROW:
            handoff = {consumer: {"surprise": np.zeros(1)} for consumer in request.consumers}
        client = self._to_client(made[client_from:]) if request.is_final and len(made) > client_from else ()
        first_rows = self._from(slot, start) if start < client_from else {}
        return StageOutput(handoff, client, is_finished, first_rows=first_rows)

    def _to_client(self, values: list[int]) -> tuple[ClientData, ...]:
        if self.speaks:
            return (AudioChunk(np.array(values, np.int16).tobytes(), SAMPLE_RATE),)
        return (TextDelta("".join(f"{value} " for value in values)),)

    def _hear(self, slot: Slot[RowState], producer: str, rows: np.ndarray) -> None:
        request, heard = slot.request, slot.state.heard[producer]
        if rows[:, 0].tolist() != list(range(len(heard), len(heard) + len(rows))):
            raise StageError(
                f"{self.stage}: rows {rows[:, 0].tolist()} came from {producer} where {len(heard)} was next"
            )
        if (rows[:, 1:] != rows[:, 1:2]).any():
            raise StageError(f"{self.stage}: a row from {producer} is torn")
        label = request.inputs[producer].whole.get("label")
        if producer != CLIENT and (label is None or label.tobytes().decode() != request.request_id):
            raise StageError(f"{self.stage}: {request.request_id} got the label of another request")
        slot.state.width = rows.shape[1]
        heard += rows[:, 1].tolist()

    def _from(self, slot: Slot[RowState], start: int) -> dict[str, int]:
        return dict.fromkeys(slot.request.consumers, start)


def rows_of(values: list[int], start: int, stop: int, width: int) -> np.ndarray:
    """Rows [start, stop), as stages hand them off."""
    rows = np.empty((stop - start, width), np.int64)
    rows[:, 0] = np.arange(start, stop)
    rows[:, 1:] = np.array(values[start:stop], np.int64)[:, None]
    return rows


class RowFrontend:
    """A chat whose last message is numbers; every final stage answers."""

    def __init__(self, outputs: frozenset[Modality], row_width: int) -> None:
        self._outputs = outputs
        self._row_width = row_width

    def prepare(self, task_input: TaskInput) -> EntryPayload:
        assert isinstance(task_input, ChatInput)
        values = [int(word) for word in task_input.messages[-1].text.split()]
        rows = rows_of(values, 0, len(values), self._row_width)
        return EntryPayload("chat", frozenset({Modality.TEXT}), self._outputs, RequestParams(), {"row": rows}, {})
