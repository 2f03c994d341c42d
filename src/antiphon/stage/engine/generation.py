"""The generation engine: non-autoregressive models, batched over requests, stateful per request.

In: StageRequests. Out: StepResults. A step that raises is run again slot by slot, so that only the guilty fail.
Does not know: lanes, sockets, what the model computes.
"""

import time
from typing import Any

from antiphon.errors import AntiphonError
from antiphon.stage.engine.base import EngineStatistics, StepResult
from antiphon.stage.engine.generation_model import GenerationModel, ModelContext, Slot
from antiphon.stage.engine.guard import guarded, outputs_of
from antiphon.stage.engine.step_meter import StepMeter
from antiphon.stage.request import Arrays, StageRequest
from antiphon.stage.scheduler.generation import GenerationScheduler


class GenerationEngine:
    """Owns a GenerationModel, its per-request states, and the scheduler that batches them."""

    def __init__(self, model: GenerationModel[Any], context: ModelContext, scheduler: GenerationScheduler) -> None:
        self._model = model
        self._context = context
        self._scheduler = scheduler
        self._states: dict[str, Any] = {}
        self._faults: dict[str, AntiphonError] = {}
        self._meter = StepMeter()

    def startup(self) -> None:
        """Load the model."""
        self._model.load(self._context)

    def add(self, request: StageRequest) -> None:
        """Open the request's state and queue it; StageError if the model cannot open it."""
        state = guarded([request], lambda: self._model.open(request))
        if isinstance(state, AntiphonError):
            raise state
        self._states[request.request_id] = state
        self._scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """Forget a request."""
        if request_id in self._states:
            del self._states[request_id]
            self._faults.pop(request_id, None)
            self._scheduler.remove(request_id)

    def has_work(self) -> bool:
        """True if some request has rows to read, pending state, or an end to come to."""
        return self._scheduler.any_runnable(self._can_run)

    def step(self) -> list[StepResult]:
        """Run one batch through the model."""
        began_s = time.monotonic()
        scheduled = self._scheduler.schedule(self._can_run)
        faulty = [request for request in scheduled if request.request_id in self._faults]
        batch = [self._slot(request) for request in scheduled if request.request_id not in self._faults]
        for request in scheduled:
            request.timeline.step(began_s)
        results = [StepResult(request, self._faults[request.request_id]) for request in faulty]
        results += outputs_of(batch, self._model.step) if batch else []
        for result in results:
            if isinstance(result.output, AntiphonError) or result.output.finished:
                self.abort(result.request.request_id)
        self._meter.step(len(batch), time.monotonic() - began_s)
        return results

    def fileno(self) -> int | None:
        """Nothing happens here by itself."""
        return None

    def statistics(self) -> EngineStatistics:
        """Counts for the monitor."""
        scheduler, meter = self._scheduler, self._meter
        return EngineStatistics(
            scheduler.num_running, scheduler.num_waiting, meter.num_steps, meter.busy_s, scheduler.max_num_seqs, meter
        )

    def close(self) -> None:
        """Drop every state."""
        self._states.clear()

    def _can_run(self, request: StageRequest) -> bool:
        exhausted = True
        for edge in request.inputs.values():
            if edge.num_rows:
                return True
            exhausted = exhausted and edge.exhausted
        if exhausted or request.request_id in self._faults:
            return True
        state = self._states[request.request_id]
        pending: bool | AntiphonError = guarded([request], lambda: self._model.has_pending(state))
        if isinstance(pending, AntiphonError):
            self._faults[request.request_id] = pending  # the next step says so
            return True
        return pending

    def _slot(self, request: StageRequest) -> Slot[Any]:
        limit, ended = self._model.rows_per_step, True
        rows: dict[str, Arrays] = {}
        for producer, edge in request.inputs.items():
            rows[producer] = edge.take(limit) if edge.num_rows else {}
            ended = ended and edge.exhausted
        return Slot(request, self._states[request.request_id], rows, ended)
