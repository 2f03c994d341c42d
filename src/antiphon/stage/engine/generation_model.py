"""The protocol of a model on the `generation` engine: non-autoregressive, stateful per request, batched.

In: slots, each a request with its state and new input rows. Out: one StageOutput per slot.
Does not know: scheduling, lanes, processes.
"""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from antiphon.stage.request import StageOutput, StageRequest

State = TypeVar("State")


@dataclass(frozen=True)
class ModelContext:
    """What the operator decides about a model: device name, threads, and a checkpoint path ("" = the packaged one)."""

    device: str
    num_threads: int
    model_path: str


@dataclass(frozen=True)
class Slot(Generic[State]):
    """One request's place in a batch."""

    request: StageRequest
    state: State


class GenerationModel(Protocol[State]):
    """A model that turns new input rows into output, step by step, keeping its own state per request."""

    def load(self, context: ModelContext) -> None:
        """Load weights."""

    def open(self, request: StageRequest) -> State:
        """The state of a new request. StageError if it can never be served."""

    def is_ready(self, slot: Slot[State]) -> bool:
        """True if a step with this slot would make progress: enough rows have come, or the input has ended."""

    def step(self, batch: list[Slot[State]]) -> list[StageOutput]:
        """One output per slot, in order. Take as much input as suits one short step.

        Raise StageError to fail; the engine then runs the slots one by one to find whose fault it is,
        so nothing of a slot may change before the step can no longer fail.
        """
