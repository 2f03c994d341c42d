"""The protocol of a model on the `generation` engine: non-autoregressive, stateful per request, batched.

In: slots, each a request's state and its new input rows. Out: one StageOutput per slot.
Does not know: scheduling, lanes, processes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import msgspec
import numpy as np

from antiphon.config.pipeline import OptionValue
from antiphon.errors import AntiphonError
from antiphon.stage.request import Arrays, StageOutput, StageRequest

State = TypeVar("State")


@dataclass(frozen=True)
class ModelContext:
    """What a model is told at load: device name, threads, and a checkpoint path ("" = the packaged one).

    private_path: prefix for files of this replica in the server's private run directory, which goes with the server.
    dtype: of weights and activations, "" = the device's default. options: the values of StageSpec.options.
    """

    device: str
    num_threads: int
    model_path: str
    private_path: str
    dtype: str = ""
    options: Mapping[str, OptionValue] = field(default_factory=dict)


class Slot(msgspec.Struct, Generic[State], frozen=True):
    """One request's place in a batch.

    rows: in-edge's producer -> key -> [n, ...] new rows, read-only, valid during the step only; empty if none came.
    ended: no more rows will come after these.
    """

    request: StageRequest
    state: State
    rows: dict[str, Arrays]
    ended: bool

    def row(self, key: str) -> np.ndarray | None:
        """The new rows of `key` for a stage with one in-edge, [n, ...], or None if none came."""
        return next((arrays[key] for arrays in self.rows.values() if key in arrays), None)


class GenerationModel(Protocol[State]):
    """A model that turns input rows into output step by step and keeps a state per request."""

    rows_per_step: int | None
    """The most new rows of one edge that a step takes; fewer where large ones would be copied into one array.

    None = all that have come, whatever it costs.
    """

    def load(self, context: ModelContext) -> None:
        """Load weights."""

    def open(self, request: StageRequest) -> State:
        """The state of a new request. StageError if it can never be served."""

    def has_pending(self, state: State) -> bool:
        """True if a step could make output from the state alone, without new rows."""

    def step(self, batch: list[Slot[State]]) -> Sequence[StageOutput | AntiphonError]:
        """One output per slot, in order; `finished` once a slot has ended and nothing is pending.

        An AntiphonError in a slot's place ends that request alone (`guard.one_by_one` makes them).

        An exception makes the engine run the slots again one by one, so a state may change only when the step
        can no longer fail.
        """
