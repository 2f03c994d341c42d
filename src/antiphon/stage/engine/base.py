"""The StageEngine protocol: what runs a stage's model, with its own idea of batching.

In: StageRequests whose inputs fill up while they run. Out: StepResults, at most a few per request and step.
Does not know: sockets, lanes, or other stages.
"""

from dataclasses import dataclass
from typing import Protocol

import msgspec

from antiphon.errors import AntiphonError
from antiphon.stage.engine.step_meter import StepMeter
from antiphon.stage.request import StageOutput, StageRequest


class StepResult(msgspec.Struct, frozen=True):
    """What one step made for one request: an output, or the error that ends the request."""

    request: StageRequest
    output: StageOutput | AntiphonError


@dataclass(frozen=True)
class EngineStatistics:
    """num_running: requests that have a place in the engine (of max_running); num_waiting: requests that wait for one.

    busy_s: time in which it computed. meter: the distributions, if the engine knows its own steps.
    """

    num_running: int
    num_waiting: int
    num_steps: int
    busy_s: float
    max_running: int
    meter: StepMeter | None = None
    num_tokens: int = 0
    num_preemptions: int = 0
    num_kv_blocks: int = 0
    num_kv_blocks_used: int = 0


class StageEngine(Protocol):
    """Runs one replica's model. Every method is called from the stage's loop and must not wait for input.

    What `step` gives is sent before `step` is called again. An engine that computes on the host does so in `step`. One
    whose device (or threads) works beside the host does not wait for it either: `step` gives what is over and begins
    what comes next, so that the device works while the loop sends; `fileno` wakes the loop when there is more.
    """

    def startup(self) -> None:
        """Load the model. Errors end the process with their message."""

    def add(self, request: StageRequest) -> None:
        """Take a request in; its inputs may still be arriving. StageError if it can never be served."""

    def abort(self, request_id: str) -> None:
        """Forget a request at once; unknown ids are ignored."""

    def has_work(self) -> bool:
        """True if `step` would do something now."""

    def step(self) -> list[StepResult]:
        """Run one batch; or give what a device or threads have made since the last call, and have them go on."""

    def fileno(self) -> int | None:
        """A descriptor that becomes readable when work appears by itself, or None."""

    def statistics(self) -> EngineStatistics:
        """Counts for the monitor."""

    def close(self) -> None:
        """Free the model."""
