"""The autoregressive engine: transformers whose inputs may still arrive, batched continuously over a paged KV cache.

In: StageRequests. Out: StepResults, one per sequence that got a token or new rows.
Does not know: lanes, sockets, what the model is.
"""

import time
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch

from antiphon.config.pipeline import StageSpec
from antiphon.errors import AntiphonError, StageError
from antiphon.stage.engine.autoregressive_model import Accepted, AutoregressiveModel, CapturableModel, Span
from antiphon.stage.engine.base import EngineStatistics, StepResult
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.engine.guard import guarded, outputs_of
from antiphon.stage.engine.step_meter import StepMeter
from antiphon.stage.request import Arrays, StageRequest
from antiphon.stage.runner.autoregressive import AutoregressiveRunner
from antiphon.stage.runner.device import Device
from antiphon.stage.runner.sampler import SequenceSampler, sample_batch
from antiphon.stage.scheduler.autoregressive import AutoregressiveScheduler, ScheduledSpan, Sequence
from antiphon.stage.scheduler.block_pool import BlockPool

KV_BLOCK_SIZE = 16  # positions


@dataclass(eq=False)
class _Running(Sequence):
    """A sequence and what the model and the sampler know of it.

    Rows of positions below num_reported have been accepted; a token was sampled from positions up to last_sampled.
    """

    state: Any = None
    sampler: SequenceSampler | None = None
    heard_end: bool = False
    num_reported: int = 0
    last_sampled: int = -1


class AutoregressiveEngine:
    """Owns the model, its KV cache, the sequences in it and their samplers."""

    def __init__(self, model: AutoregressiveModel[Any], context: ModelContext, spec: StageSpec) -> None:
        self._model = model
        self._context = context
        self._spec = spec
        self._device = Device(context.device, context.dtype)
        self._sequences: dict[str, _Running] = {}
        self._pool = BlockPool(num_blocks=spec.num_kv_blocks, block_size=KV_BLOCK_SIZE)
        self._scheduler = AutoregressiveScheduler(
            self._pool,
            max_num_seqs=spec.max_num_seqs,
            max_num_batched_tokens=spec.max_num_batched_tokens,
            num_positions=lambda sequence: self._model.num_positions(self._of(sequence).state),
        )
        self._meter = StepMeter()
        self._num_tokens = 0
        self.model_s = 0.0

    @property
    def num_preemptions(self) -> int:
        """Sequences that gave up their blocks so far."""
        return self._scheduler.num_preemptions

    def startup(self) -> None:
        """Load the model and allocate the KV cache."""
        torch.set_num_threads(self._context.num_threads)
        self._model.load(self._context, self._device)
        self._runner = AutoregressiveRunner(
            self._model,
            self._device,
            num_blocks=self._spec.num_kv_blocks,
            block_size=KV_BLOCK_SIZE,
            capturable=cast("CapturableModel[Any]", self._model) if self._spec.captures_decode else None,
        )

    def add(self, request: StageRequest) -> None:
        """Open the request's state, read the input it has, and queue it; AntiphonError if it can never be served."""
        opened = guarded([request], lambda: self._open(request))
        if isinstance(opened, AntiphonError):
            self._sequences.pop(request.request_id, None)
            raise opened

    def abort(self, request_id: str) -> None:
        """Forget a request and free its blocks."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._scheduler.remove(sequence)

    def has_work(self) -> bool:
        """True if input has come or a span could be computed."""
        return any(map(_has_news, self._sequences.values())) or self._scheduler.any_runnable()

    def step(self) -> list[StepResult]:
        """Take in new rows, then compute one batch."""
        began_s = time.monotonic()
        results = self._receive_all()
        schedule = self._scheduler.schedule()
        for span in schedule.spans:
            span.sequence.request.timeline.step(began_s)
        results += [StepResult(sequence.request, error) for sequence, error in schedule.failed]
        if schedule.spans:
            results += self._compute(list(schedule.spans))
        for result in results:
            if isinstance(result.output, AntiphonError) or result.output.finished:
                self.abort(result.request.request_id)
        self._meter.step(len(schedule.spans), time.monotonic() - began_s)
        return results

    def fileno(self) -> int | None:
        """Nothing happens here by itself."""
        return None

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
        """Drop every sequence."""
        self._sequences.clear()

    def _open(self, request: StageRequest) -> None:
        sequence = _Running(request, state=self._model.open(request))
        self._sequences[request.request_id] = sequence
        self._receive(sequence)
        self._scheduler.add(sequence)

    def _of(self, sequence: Sequence) -> _Running:
        return self._sequences[sequence.request.request_id]

    def _receive_all(self) -> list[StepResult]:
        results = []
        for sequence in list(self._sequences.values()):
            if _has_news(sequence):
                received = guarded([sequence.request], partial(self._receive, sequence))
                if isinstance(received, AntiphonError):
                    results.append(StepResult(sequence.request, received))
                    self.abort(sequence.request.request_id)
        return results

    def _receive(self, sequence: _Running) -> None:
        inputs = sequence.request.inputs
        rows = {producer: edge.take() for producer, edge in inputs.items()}
        sequence.heard_end = all(edge.exhausted for edge in inputs.values())
        self._model.receive(sequence.request, sequence.state, rows, sequence.heard_end)

    def _compute(self, spans: list[ScheduledSpan]) -> list[StepResult]:
        """One forward pass; if it raises, one per span, so that only the guilty fail."""
        requests = [span.sequence.request for span in spans]
        blocks = [span.sequence.blocks for span in spans]
        computed = guarded(requests, lambda: self._forward([self._span(span) for span in spans], blocks))
        if not isinstance(computed, AntiphonError):
            return self._report(self._advance(spans, *computed))
        if len(spans) == 1:
            return [StepResult(requests[0], computed)]
        return [result for span in spans for result in self._compute([span])]

    def _span(self, span: ScheduledSpan) -> Span[Any]:
        sequence = self._of(span.sequence)
        is_last = span.stop == self._model.num_positions(sequence.state)
        samples = is_last and span.stop - 1 > sequence.last_sampled
        return Span(sequence.request, sequence.state, span.start, span.stop, samples)

    def _forward(self, spans: list[Span[Any]], blocks: list[list[int]]) -> tuple[dict[str, int], list[Arrays]]:
        """Request id -> the token sampled for it, and the rows of each span."""
        sampling = [span.request.request_id for span in spans if span.samples]
        samplers = [self._sampler(self._sequences[request_id]) for request_id in sampling]
        began_s = time.perf_counter()
        computed = self._runner.forward(spans, blocks)
        self.model_s += time.perf_counter() - began_s
        tokens = sample_batch(computed.logits, samplers)
        self._num_tokens += len(tokens)
        return dict(zip(sampling, tokens, strict=True)), computed.rows()

    def _advance(self, spans: list[ScheduledSpan], tokens: dict[str, int], rows: list[Arrays]) -> list[Accepted[Any]]:
        """Note what has been computed. Spans that a preemption made us repeat have nothing to report."""
        accepted = []
        for span, arrays in zip(spans, rows, strict=True):
            sequence = self._of(span.sequence)
            sequence.num_computed = span.stop
            token = tokens.get(sequence.request.request_id)
            first_row = max(span.start, sequence.num_reported)
            if token is None and first_row >= span.stop:
                continue
            new = {name: array[first_row - span.start :] for name, array in arrays.items()}
            reason = None if token is None else self._sampler(sequence).finish_reason(token)
            accepted.append(Accepted(sequence.request, sequence.state, new, first_row, token, reason))
            sequence.num_reported = max(sequence.num_reported, span.stop)
            if token is not None:
                sequence.last_sampled = span.stop - 1
        return accepted

    def _report(self, accepted: list[Accepted[Any]]) -> list[StepResult]:
        """What the model makes of it; if it raises, entry by entry, so that only the guilty fail."""
        results = outputs_of(accepted, self._model.accept) if accepted else []
        return [_checked(entry, result) for entry, result in zip(accepted, results, strict=True)]

    def _sampler(self, sequence: _Running) -> SequenceSampler:
        if sequence.sampler is None:
            request, state = sequence.request, sequence.state
            sequence.sampler = SequenceSampler(self._model.sampling(request, state), self._model.rules(request, state))
        return sequence.sampler


def _has_news(sequence: _Running) -> bool:
    inputs = sequence.request.inputs.values()
    return any(edge.num_rows for edge in inputs) or (not sequence.heard_end and all(edge.exhausted for edge in inputs))


def _checked(entry: Accepted[Any], result: StepResult) -> StepResult:
    """A sequence that a stop id or its length has ended must end in the model, too."""
    output, reason = result.output, entry.finish_reason
    if isinstance(output, AntiphonError) or reason is None or output.finished:
        return result
    name = entry.request.request_id
    return StepResult(entry.request, StageError(f"{name}: the model goes on after finish_reason={reason}"))
