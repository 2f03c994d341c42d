"""The engine of sequences: requests whose inputs may still arrive, batched continuously over a paged KV budget.

In: StageRequests. Out: StepResults, one per sequence that got a token or new rows.
Does not know: lanes, sockets, what the model is, how its runner computes a step.

A runner with a device works on one step while the loop sends what the one before has made, and new rows are taken in.
"""

import time
from collections.abc import Sequence as Batch
from dataclasses import dataclass
from typing import Any

from antiphon.config.pipeline import StageSpec
from antiphon.errors import AntiphonError, StageError
from antiphon.stage.engine.base import EngineStatistics, StepResult
from antiphon.stage.engine.guard import guarded, outputs_of
from antiphon.stage.engine.launched_step import LaunchedStep
from antiphon.stage.engine.sequence_model import Accepted, ComputedSpan, SequenceModel, SequenceRunner, Span
from antiphon.stage.engine.step_meter import StepMeter
from antiphon.stage.request import StageRequest
from antiphon.stage.scheduler.autoregressive import AutoregressiveScheduler, ScheduledSpan, Sequence
from antiphon.stage.scheduler.block_pool import BlockPool

KV_BLOCK_SIZE = 16  # positions


@dataclass(eq=False)
class _Running(Sequence):
    """A sequence and what the model knows of it.

    Rows of positions below num_reported have been accepted; a token was sampled from positions up to last_sampled.
    """

    state: Any = None
    heard_end: bool = False
    num_reported: int = 0
    last_sampled: int = -1


@dataclass(frozen=True)
class _Launched:
    """What the runner is working on."""

    spans: Batch[ScheduledSpan[_Running]]
    step: LaunchedStep[ComputedSpan]
    began_s: float

    @property
    def requests(self) -> list[StageRequest]:
        """Whose spans they are."""
        return [span.sequence.request for span in self.spans]


class SequenceEngine:
    """Owns the sequences, their places and their KV blocks; the runner owns what it computes with."""

    def __init__(self, model: SequenceModel[Any], runner: SequenceRunner[Any], spec: StageSpec) -> None:
        self._model = model
        self._runner = runner
        self._spec = spec
        self._sequences: dict[str, _Running] = {}
        self._pool = BlockPool(num_blocks=spec.num_kv_blocks, block_size=KV_BLOCK_SIZE)
        self._scheduler: AutoregressiveScheduler[_Running] = AutoregressiveScheduler(
            self._pool,
            max_num_seqs=spec.max_num_seqs,
            max_num_batched_tokens=spec.max_num_batched_tokens,
            num_positions=lambda sequence: model.num_positions(sequence.state),
        )
        self._launched: _Launched | None = None
        self._meter = StepMeter()
        self._num_tokens = 0

    @property
    def num_preemptions(self) -> int:
        """Sequences that gave up their blocks so far."""
        return self._scheduler.num_preemptions

    def startup(self) -> None:
        """Load what steps are computed with."""
        self._runner.startup()

    def add(self, request: StageRequest) -> None:
        """Open the request's state, read the input it has, and queue it; AntiphonError if it can never be served."""
        opened = guarded([request], self._open, request)
        if isinstance(opened, AntiphonError):
            self._sequences.pop(request.request_id, None)
            raise opened

    def abort(self, request_id: str) -> None:
        """Forget a request and free its blocks."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._scheduler.remove(sequence)
            self._runner.forget(request_id)

    def has_work(self) -> bool:
        """True if input has come, the launched step is over, or one could be launched."""
        can_go_on = self._launched.step.is_over() if self._launched is not None else self._scheduler.any_runnable()
        return can_go_on or any(map(_has_news, self._sequences.values()))

    def step(self) -> list[StepResult]:
        """Give what the launched step has made, if it is over; take in new rows; launch the next step."""
        results = self._collect_if_over()
        results += self._receive_all()
        if self._launched is None:
            results += self._launch()
            results += self._collect_if_over()  # what the host has computed is over
        return results

    def fileno(self) -> int | None:
        """Readable when a launched step is over."""
        return self._runner.fileno()

    def statistics(self) -> EngineStatistics:
        """Counts for the monitor."""
        return EngineStatistics(
            self._scheduler.num_running,
            self._scheduler.num_waiting,
            self._meter.num_steps,
            self._meter.busy_s,
            self._spec.max_num_seqs,
            self._meter,
            num_tokens=self._num_tokens,
            num_preemptions=self.num_preemptions,
            num_kv_blocks=self._pool.num_blocks,
            num_kv_blocks_used=self._pool.num_blocks - self._pool.num_free,
        )

    def close(self) -> None:
        """Drop every sequence, and what the runner computes with."""
        self._sequences.clear()
        self._runner.close()

    def _open(self, request: StageRequest) -> None:
        sequence = _Running(request, state=self._model.open(request))
        self._sequences[request.request_id] = sequence
        self._receive(sequence)
        self._scheduler.add(sequence)

    def _receive_all(self) -> list[StepResult]:
        results = []
        for sequence in list(self._sequences.values()):
            if _has_news(sequence):
                received = guarded([sequence.request], self._receive, sequence)
                if isinstance(received, AntiphonError):
                    results.append(self._ended(sequence, received))
        return results

    def _receive(self, sequence: _Running) -> None:
        inputs = sequence.request.inputs
        rows = {producer: edge.take() for producer, edge in inputs.items()}
        sequence.heard_end = all(edge.exhausted for edge in inputs.values())
        self._model.receive(sequence.request, sequence.state, rows, sequence.heard_end)

    def _launch(self) -> list[StepResult]:
        """Begin the next step, if there is something to do; gives the sequences that can never fit."""
        began_s = time.monotonic()
        schedule = self._scheduler.schedule()
        results = [self._ended(sequence, error) for sequence, error in schedule.failed]
        if not schedule.spans:
            return results
        for span in schedule.spans:
            span.sequence.request.timeline.step(began_s)
        requests = [span.sequence.request for span in schedule.spans]
        step = guarded(requests, self._run, schedule.spans)
        if isinstance(step, AntiphonError):
            return results + self._one_by_one(schedule.spans, step)
        self._launched = _Launched(schedule.spans, step, began_s)
        return results

    def _run(self, spans: Batch[ScheduledSpan[_Running]]) -> LaunchedStep[ComputedSpan]:
        return self._runner.launch(list(map(self._span, spans)), [span.sequence.blocks for span in spans])

    def _collect_if_over(self) -> list[StepResult]:
        launched = self._launched
        if launched is None or not launched.step.is_over():
            return []
        self._launched = None
        computed = guarded(launched.requests, launched.step.collect)
        self._meter.step(len(launched.spans), time.monotonic() - launched.began_s)
        if isinstance(computed, AntiphonError):
            return self._one_by_one(launched.spans, computed)
        return self._report(self._advance(launched.spans, computed))

    def _one_by_one(self, spans: Batch[ScheduledSpan[_Running]], error: AntiphonError) -> list[StepResult]:
        """A step that raised, again for each span, so that only the guilty fail."""
        remaining = [span for span in spans if self._is_here(span.sequence)]
        if len(spans) == 1:
            return [self._ended(span.sequence, error) for span in remaining]
        return [result for span in remaining for result in self._alone(span)]

    def _alone(self, span: ScheduledSpan[_Running]) -> list[StepResult]:
        computed = guarded([span.sequence.request], lambda: self._run([span]).collect())
        if isinstance(computed, AntiphonError):
            return [self._ended(span.sequence, computed)]
        return self._report(self._advance([span], computed))

    def _is_here(self, sequence: _Running) -> bool:
        """False if the sequence has ended since its step was launched."""
        return self._sequences.get(sequence.request.request_id) is sequence

    def _ended(self, sequence: _Running, error: AntiphonError) -> StepResult:
        self.abort(sequence.request.request_id)
        return StepResult(sequence.request, error)

    def _span(self, span: ScheduledSpan[_Running]) -> Span[Any]:
        sequence = span.sequence
        is_last = span.stop == self._model.num_positions(sequence.state)
        samples = is_last and span.stop - 1 > sequence.last_sampled
        return Span(sequence.request, sequence.state, span.start, span.stop, samples)

    def _advance(self, scheduled: Batch[ScheduledSpan[_Running]], computed: Batch[ComputedSpan]) -> list[Accepted[Any]]:
        """Note what has been computed. Spans that a preemption made us repeat have nothing to report."""
        accepted = []
        for span, made in zip(scheduled, computed, strict=True):
            sequence = span.sequence
            if not self._is_here(sequence):
                continue
            sequence.num_computed = span.stop
            first_row = span.start if span.start >= sequence.num_reported else sequence.num_reported
            if made.token is None and first_row >= span.stop:
                continue
            rows = made.rows
            if first_row > span.start:
                rows = {name: array[first_row - span.start :] for name, array in rows.items()}
            request, state = sequence.request, sequence.state
            accepted.append(Accepted(request, state, rows, first_row, made.token, made.finish_reason, made.scores))
            if span.stop > sequence.num_reported:
                sequence.num_reported = span.stop
            if made.token is not None:
                sequence.last_sampled = span.stop - 1
                self._num_tokens += 1
        return accepted

    def _report(self, accepted: list[Accepted[Any]]) -> list[StepResult]:
        """What the model makes of it; if it raises, entry by entry, so that only the guilty fail."""
        made = outputs_of(accepted, self._model.accept) if accepted else []
        results = [_checked(entry, result) for entry, result in zip(accepted, made, strict=True)]
        for result in results:
            if isinstance(result.output, AntiphonError) or result.output.finished:
                self.abort(result.request.request_id)
        return results


def _has_news(sequence: _Running) -> bool:
    if sequence.heard_end:  # and so everything before it
        return False
    is_end = True
    for edge in sequence.request.inputs.values():
        if edge.num_rows:
            return True
        is_end = is_end and edge.exhausted
    return is_end


def _checked(entry: Accepted[Any], result: StepResult) -> StepResult:
    """A sequence that a stop id or its length has ended must end in the model, too."""
    output, reason = result.output, entry.finish_reason
    if isinstance(output, AntiphonError) or reason is None or output.finished:
        return result
    name = entry.request.request_id
    return StepResult(entry.request, StageError(f"{name}: the model goes on after finish_reason={reason}"))
