"""The floor: the same stages, requests and arrivals under a runtime that costs nothing, event by event.

In: a PipelineTiming and Arrivals. Out: one Record per request, as a client beside the stages would have seen it.
Does not know: clocks, processes; 1 s of it takes far less.

Steps are formed as the real schedulers form them: decodes before prompts, older requests first, a place for
`max_num_seqs`. What ends at one moment is all seen by the steps that begin at that moment.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from antiphon.bench.ideal.timing import EdgeTiming, PipelineTiming, StageKind, StageTiming, Work
from antiphon.bench.serve.messages import Record


@dataclass(frozen=True)
class Arrival:
    """One request. Lengths are in tokens."""

    at_s: float
    num_input_tokens: int
    num_output_tokens: int


@dataclass
class _Answer:
    """What the client has heard."""

    text_s: list[float] = field(default_factory=list)
    audio_s: list[float] = field(default_factory=list)
    audio_durations_s: list[float] = field(default_factory=list)
    end_s: float = 0.0


@dataclass(eq=False)
class _Job:
    """One request in one stage. rows: have come. unsent: rows that wait for the next chunk to be full."""

    number: int
    stage: StageTiming
    work: Work
    edge: EdgeTiming | None
    out_edge: EdgeTiming | None
    answer: _Answer
    replica: "_Replica"
    is_text: bool
    is_audio: bool
    next: "_Job | None" = None
    rows: int = 0
    has_heard_end: bool = False
    num_computed: int = 0
    num_outputs: int = 0
    unsent: int = 0
    num_chunks: int = 0

    def num_known(self) -> int:
        """Positions (rows, in a GENERATOR) whose input is there."""
        work, edge = self.work, self.edge
        if edge is not None and edge.all_chunks and not self.has_heard_end:
            return 0
        if self.stage.kind is StageKind.GENERATOR:
            return self.rows
        allowed = work.num_outputs if edge is None or self.has_heard_end else self._num_allowed(edge)
        return work.num_prompt + min(self.num_outputs, allowed - 1) if allowed else 0

    def _num_allowed(self, edge: EdgeTiming) -> int:
        """Tokens that may be made with the rows that have come, while more may come."""
        num_rows = self.rows - self.work.num_prompt if edge.of_positions else self.rows
        ratio = self.stage.outputs_per_input or 1.0
        return max(0, num_rows if ratio >= 1 else int(num_rows * ratio) - 1)

    @property
    def is_finished(self) -> bool:
        """True when there is nothing left to do."""
        if self.stage.kind is StageKind.GENERATOR:
            return self.has_heard_end and self.num_computed >= self.rows
        return self.num_outputs >= self.work.num_outputs


@dataclass(eq=False)
class _Replica:
    """Owns its places and what waits for one. step: the spans that are being computed; None when idle.

    num_bound: requests that it has now; num_ever_bound: that it has had.
    """

    stage: StageTiming
    running: list[_Job] = field(default_factory=list)
    waiting: deque[_Job] = field(default_factory=deque)
    step: list[tuple[_Job, int]] | None = None
    num_bound: int = 0
    num_ever_bound: int = 0

    def load(self) -> tuple[int, int]:
        """What the orchestrator goes by: of the replicas with the fewest requests, the one bound least often."""
        return self.num_bound, self.num_ever_bound

    def form_step(self) -> float:
        """Choose the next spans; their time in seconds, 0 if there is nothing to do."""
        self._admit()
        runnable = [(job, job.num_known() - job.num_computed) for job in self.running]
        runnable = [(job, missing) for job, missing in runnable if missing > 0]
        if not runnable:
            return 0.0
        stage = self.stage
        if stage.kind is StageKind.GENERATOR:
            limit = stage.rows_per_step
            spans = [(job, min(n, limit or n)) for job, n in runnable[: stage.max_batch_size]]
            again = sum(min(stage.left_context_rows, job.num_computed) for job, _ in spans)
            for job, _ in spans:  # round-robin: who was served goes to the end
                self.running.remove(job)
                self.running.append(job)
        else:
            spans, again = self._within_budget(runnable), 0
        self.step = spans
        return stage.step_s(len(spans), sum(count for _, count in spans) + again - len(spans))

    def _within_budget(self, runnable: list[tuple[_Job, int]]) -> list[tuple[_Job, int]]:
        budget, spans = self.stage.max_num_batched_tokens, []
        for job, missing in sorted(runnable, key=lambda pair: pair[1] > 1):
            if budget > 0:
                count = min(missing, budget)
                spans.append((job, count))
                budget -= count
        return spans

    def _admit(self) -> None:
        for job in list(self.waiting):
            if len(self.running) == self.stage.max_num_seqs:
                return
            if job.num_known() > 0:
                self.waiting.remove(job)
                self.running.append(job)


class _Simulation:
    """Owns time, and the replicas of every stage."""

    def __init__(self, pipeline: PipelineTiming, arrivals: Sequence[Arrival]) -> None:
        self._pipeline = pipeline
        self._arrivals = arrivals
        self._pools = [[_Replica(stage) for _ in range(stage.replicas)] for stage in pipeline.stages]
        self._answers = [_Answer() for _ in arrivals]
        self._events: list[tuple[float, int, int | _Replica]] = []
        self._num_events = 0
        self._touched: dict[_Replica, None] = {}

    def run(self) -> list[_Answer]:
        """Everything that happens at one moment, then the steps that begin there, until nothing is left."""
        for number, arrival in enumerate(self._arrivals):
            self._at(arrival.at_s, number)
        while self._events:
            now_s = self._events[0][0]
            while self._events and self._events[0][0] <= now_s:
                _, _, event = heapq.heappop(self._events)
                if isinstance(event, _Replica):
                    self._end_step(event, now_s)
                else:
                    self._arrive(event)
            touched, self._touched = self._touched, {}
            for replica in touched:
                if replica.step is None and (step_s := replica.form_step()) > 0:
                    self._at(now_s + step_s, replica)
        return self._answers

    def _at(self, at_s: float, event: int | _Replica) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (at_s, self._num_events, event))

    def _arrive(self, number: int) -> None:
        """Bind the least loaded replica of every stage."""
        arrival, pipeline = self._arrivals[number], self._pipeline
        works = pipeline.work(arrival.num_input_tokens, arrival.num_output_tokens)
        jobs = []
        for index, (stage, work) in enumerate(zip(pipeline.stages, works, strict=True)):
            replica = min(self._pools[index], key=_Replica.load)
            replica.num_bound += 1
            replica.num_ever_bound += 1
            job = _Job(
                number,
                stage,
                work,
                pipeline.edges[index - 1] if index else None,
                pipeline.edges[index] if index < len(pipeline.edges) else None,
                self._answers[number],
                replica,
                is_text=stage.name == pipeline.text_stage,
                is_audio=stage.name == pipeline.audio_stage,
            )
            jobs.append(job)
            replica.waiting.append(job)
        for job, following in pairwise(jobs):
            job.next = following
        self._touched[jobs[0].replica] = None

    def _end_step(self, replica: _Replica, now_s: float) -> None:
        spans, replica.step = replica.step or [], None
        self._touched[replica] = None
        for job, count in spans:
            self._take_span(job, count, now_s)
            if job.is_finished:
                self._finish(job, now_s)

    def _take_span(self, job: _Job, count: int, now_s: float) -> None:
        """What a span makes: rows for the next stage, a token, audio."""
        job.num_computed += count
        if job.stage.kind is StageKind.GENERATOR:
            job.unsent += count
            if job.is_audio:
                job.answer.audio_s.append(now_s)
                job.answer.audio_durations_s.append(count * job.stage.row_s)
        else:
            has_token = job.num_computed == job.work.num_prompt + job.num_outputs
            job.num_outputs += has_token
            if has_token and job.is_text:
                job.answer.text_s.append(now_s)
            of_positions = job.out_edge is not None and job.out_edge.of_positions
            job.unsent += count if of_positions else int(has_token)
        self._send_rows(job, now_s, is_last=job.is_finished)

    def _send_rows(self, job: _Job, now_s: float, *, is_last: bool) -> None:
        edge, following = job.out_edge, job.next
        if edge is None or following is None:
            return
        size = edge.first_rows if job.num_chunks == 0 else edge.rows
        if not is_last and (size is None or job.unsent < size):
            return
        following.rows += job.unsent
        following.has_heard_end = is_last
        job.unsent, job.num_chunks = 0, job.num_chunks + 1
        self._touched[following.replica] = None

    def _finish(self, job: _Job, now_s: float) -> None:
        job.replica.running.remove(job)
        job.replica.num_bound -= 1
        if job.is_text or job.is_audio or job.next is None:
            job.answer.end_s = max(job.answer.end_s, now_s)


def simulate(pipeline: PipelineTiming, arrivals: Sequence[Arrival]) -> list[Record]:
    """One Record per arrival, in order; sent_s is the arrival."""
    answers = _Simulation(pipeline, arrivals).run()
    return [
        Record(
            number=number,
            due_s=arrival.at_s,
            ready_s=arrival.at_s,
            sent_s=arrival.at_s,
            end_s=answer.end_s,
            text_s=answer.text_s,
            audio_s=answer.audio_s,
            audio_durations_s=answer.audio_durations_s,
            num_input_tokens=arrival.num_input_tokens,
            num_output_tokens=arrival.num_output_tokens,
        )
        for number, (arrival, answer) in enumerate(zip(arrivals, answers, strict=True))
    ]
