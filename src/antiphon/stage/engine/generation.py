"""The generation engine: non-autoregressive models, batched over requests, stateful per request.

In: StageRequests. Out: StepResults. A step that raises is run again slot by slot, so that only the guilty fail.
Does not know: lanes, sockets, what the model computes.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from antiphon.errors import AntiphonError, StageError
from antiphon.stage.engine.base import EngineStatistics, StepResult
from antiphon.stage.engine.generation_model import GenerationModel, ModelContext, Slot
from antiphon.stage.request import StageOutput, StageRequest
from antiphon.stage.scheduler.generation import GenerationScheduler

log = logging.getLogger(__name__)
T = TypeVar("T")


class GenerationEngine:
    """Owns a GenerationModel, its per-request states, and the scheduler that batches them."""

    def __init__(self, model: GenerationModel[Any], context: ModelContext, scheduler: GenerationScheduler) -> None:
        self._model = model
        self._context = context
        self._scheduler = scheduler
        self._states: dict[str, Any] = {}
        self._num_steps = 0
        self._busy_s = 0.0

    def startup(self) -> None:
        """Load the model."""
        self._model.load(self._context)

    def add(self, request: StageRequest) -> None:
        """Open the request's state and queue it; StageError if the model cannot open it."""
        state = _guarded([request], lambda: self._model.open(request))
        if isinstance(state, AntiphonError):
            raise state
        self._states[request.request_id] = state
        self._scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """Forget a request."""
        if request_id in self._states:
            del self._states[request_id]
            self._scheduler.remove(request_id)

    def has_work(self) -> bool:
        """True if some request has rows to read, pending state, or an end to come to."""
        return self._scheduler.any_runnable(self._can_run)

    def step(self) -> list[StepResult]:
        """Run one batch through the model."""
        began = time.perf_counter()
        batch = [self._slot(request) for request in self._scheduler.schedule(self._can_run)]
        results = self._run(batch)
        for result in results:
            if isinstance(result.output, AntiphonError) or result.output.finished:
                self.abort(result.request.request_id)
        self._num_steps += 1
        self._busy_s += time.perf_counter() - began
        return results

    def fileno(self) -> int | None:
        """Nothing happens here by itself."""
        return None

    def statistics(self) -> EngineStatistics:
        """Counts for the monitor."""
        return EngineStatistics(self._scheduler.num_running, self._scheduler.num_waiting, self._num_steps, self._busy_s)

    def close(self) -> None:
        """Drop every state."""
        self._states.clear()

    def _can_run(self, request: StageRequest) -> bool:
        inputs = request.inputs.values()
        if any(edge.num_rows for edge in inputs) or all(edge.exhausted for edge in inputs):
            return True
        return self._model.has_pending(self._states[request.request_id])

    def _slot(self, request: StageRequest) -> Slot[Any]:
        rows = {producer: edge.take(self._model.rows_per_step) for producer, edge in request.inputs.items()}
        ended = all(edge.exhausted for edge in request.inputs.values())
        return Slot(request, self._states[request.request_id], rows, ended)

    def _run(self, batch: list[Slot[Any]]) -> list[StepResult]:
        """One call for the whole batch; if it raises, one call per slot."""
        outputs = _guarded([slot.request for slot in batch], lambda: self._outputs(batch))
        if not isinstance(outputs, AntiphonError):
            return [StepResult(slot.request, output) for slot, output in zip(batch, outputs, strict=True)]
        if len(batch) == 1:
            return [StepResult(batch[0].request, outputs)]
        return [result for slot in batch for result in self._run([slot])]

    def _outputs(self, batch: list[Slot[Any]]) -> list[StageOutput]:
        outputs = self._model.step(batch)
        if len(outputs) != len(batch):
            raise StageError(f"the model made {len(outputs)} outputs for {len(batch)} requests; make one for each")
        return outputs


def _guarded(requests: list[StageRequest], call: Callable[[], T]) -> T | AntiphonError:
    """What `call` gives, or the error that ends the request it was for."""
    try:
        return call()
    except AntiphonError as error:
        return error
    except Exception as error:  # a model's fault ends a request, never the process
        names = ", ".join(request.request_id for request in requests)
        log.exception("req=%s the model raised", names)
        return StageError(f"{names}: the model raised {type(error).__name__}: {error}")
