"""The generation engine: non-autoregressive models, batched over requests, stateful per request.

In: StageRequests. Out: StepResults. A step that raises is run again slot by slot, so that only the guilty fail.
Does not know: lanes, sockets, what the model computes.
"""

import time
from dataclasses import dataclass
from typing import Any

from antiphon.errors import AntiphonError
from antiphon.stage.engine.base import EngineStatistics, StepResult
from antiphon.stage.engine.generation_model import GenerationModel, ModelContext, Slot
from antiphon.stage.engine.guard import guarded, outputs_of
from antiphon.stage.engine.step_meter import StepMeter
from antiphon.stage.request import Arrays, EdgeInput, StageRequest
from antiphon.stage.scheduler.generation import GenerationScheduler, Job


@dataclass(slots=True)
class ModelJob(Job):
    """A request with the model's state of it.

    fault: what the next step says of it. last_slot: its slot of every further step once no more rows will come.
    """

    state: Any
    inputs: tuple[tuple[str, EdgeInput], ...]
    fault: AntiphonError | None = None
    last_slot: Slot[Any] | None = None


class GenerationEngine:
    """Owns a GenerationModel, its per-request states, and the scheduler that batches them."""

    def __init__(
        self, model: GenerationModel[Any], context: ModelContext, scheduler: GenerationScheduler[ModelJob]
    ) -> None:
        self._model = model
        self._context = context
        self._scheduler = scheduler
        self._jobs: dict[str, ModelJob] = {}
        self._meter = StepMeter()

    def startup(self) -> None:
        """Load the model."""
        self._model.load(self._context)

    def add(self, request: StageRequest) -> None:
        """Open the request's state and queue it; StageError if the model cannot open it."""
        state = guarded([request], self._model.open, request)
        if isinstance(state, AntiphonError):
            raise state
        job = self._jobs[request.request_id] = ModelJob(request, state, tuple(request.inputs.items()))
        self._scheduler.add(job)

    def abort(self, request_id: str) -> None:
        """Forget a request."""
        if self._jobs.pop(request_id, None) is not None:
            self._scheduler.remove(request_id)

    def has_work(self) -> bool:
        """True if some request has rows to read, pending state, or an end to come to."""
        return self._scheduler.any_runnable(self._can_run)

    def step(self) -> list[StepResult]:
        """Run one batch through the model."""
        began_s = time.monotonic()
        batch, results = [], []
        for job in self._scheduler.schedule(self._can_run):
            if not job.request.timeline.first_step_s:
                job.request.timeline.step(began_s)
            if job.fault is None:
                batch.append(job.last_slot or self._slot(job))
            else:
                results.append(StepResult(job.request, job.fault))
        if batch:
            results += outputs_of(batch, self._model.step)
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
        self._jobs.clear()

    def _can_run(self, job: ModelJob) -> bool:
        if job.last_slot is not None or job.fault is not None:
            return True
        exhausted = True
        for _, edge in job.inputs:
            if edge.num_rows:
                return True
            exhausted = exhausted and edge.exhausted
        return exhausted or self._has_pending(job)

    def _has_pending(self, job: ModelJob) -> bool:
        pending: bool | AntiphonError = guarded([job.request], self._model.has_pending, job.state)
        if isinstance(pending, AntiphonError):
            job.fault = pending
            return True
        return pending

    def _slot(self, job: ModelJob) -> Slot[Any]:
        limit, ended = self._model.rows_per_step, True
        rows: dict[str, Arrays] = {}
        for producer, edge in job.inputs:
            rows[producer] = edge.take(limit) if edge.num_rows else {}
            ended = ended and edge.exhausted
        slot = Slot(job.request, job.state, rows, ended)
        if ended:
            job.last_slot = Slot(job.request, job.state, {producer: {} for producer in rows}, ended)
        return slot
