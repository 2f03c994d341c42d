"""The scheduler of the autoregressive engine: continuous batching with chunked prefill and preemption by recompute.

In: sequences and how many positions of each could be computed. Out: the spans of the next step.
Does not know: tensors, models, tokens.

A step has at most max_num_batched_tokens positions, decodes (one position) before prefills, older sequences first.
A sequence that waits for input or credit takes no place until it can run. If blocks run out, the newest running
sequence yields: its blocks are freed, it takes its turn in the queue again, and computes its positions once more when
there is room. The oldest that can run thus always gets on.
"""

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from antiphon.errors import StageError
from antiphon.stage.request import StageRequest
from antiphon.stage.scheduler.block_pool import BlockPool


@dataclass(eq=False)
class Sequence:
    """One request's place in the KV cache: positions [0, num_computed) are in `blocks`. Older ones arrived earlier."""

    request: StageRequest
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    arrival: int = 0


S = TypeVar("S", bound=Sequence)


class ScheduledSpan(msgspec.Struct, Generic[S], frozen=True):
    """Positions [start, stop) of `sequence` are computed in this step."""

    sequence: S
    start: int
    stop: int


@dataclass(frozen=True)
class Schedule(Generic[S]):
    """One step's spans, and the sequences that can never fit."""

    spans: tuple[ScheduledSpan[S], ...]
    failed: tuple[tuple[S, StageError], ...] = ()


class AutoregressiveScheduler(Generic[S]):
    """Owns the running sequences (at most max_num_seqs) and the waiting ones, both oldest first, and the block pool."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        num_positions: Callable[[S], int],
    ) -> None:
        self._pool = pool
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._num_positions = num_positions
        self._running: list[S] = []
        self._waiting: list[S] = []
        self._num_added = 0
        self.num_preemptions = 0

    def add(self, sequence: S) -> None:
        """Queue a sequence; StageError if its prompt can never fit."""
        error = self._misfit(sequence, self._num_positions(sequence) + 1)
        if error is not None:
            raise error
        self._num_added += 1
        sequence.arrival = self._num_added
        self._waiting.append(sequence)

    def remove(self, sequence: S) -> None:
        """Forget a sequence and free its blocks."""
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._free(sequence)

    def any_runnable(self) -> bool:
        """True if `schedule` would do something."""
        return any(map(self._can_run, self._running)) or bool(self._admissible())

    def schedule(self) -> Schedule[S]:
        """The next step. Allocates blocks, and preempts where they do not suffice."""
        for sequence in self._admissible():
            self._waiting.remove(sequence)
            insort(self._running, sequence, key=_arrival)
        budget, num_preemptions = self._max_num_batched_tokens, self.num_preemptions
        spans: dict[S, ScheduledSpan[S]] = {}
        failed: list[tuple[S, StageError]] = []
        for sequence, known in self._runnable():
            if not budget:
                break
            if self.num_preemptions > num_preemptions and sequence not in self._running:
                continue
            if (error := self._misfit(sequence, known)) is not None:
                failed.append((sequence, error))
                continue
            start = sequence.num_computed
            stop = min(known, start + budget)
            if self._grow(sequence, stop, spans):
                spans[sequence] = ScheduledSpan(sequence, start, stop)
                budget -= stop - start
        return Schedule(tuple(spans.values()), tuple(failed))

    @property
    def num_running(self) -> int:
        """Sequences with a place."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for one."""
        return len(self._waiting)

    def _runnable(self) -> list[tuple[S, int]]:
        """The running sequences that can run, with their known positions: decodes first, older ones first."""
        decodes: list[tuple[S, int]] = []
        prefills: list[tuple[S, int]] = []
        for sequence in self._running:
            known = self._num_positions(sequence)
            num_new = known - sequence.num_computed
            if num_new > 0 and not sequence.request.is_blocked:
                (decodes if num_new == 1 else prefills).append((sequence, known))
        return decodes + prefills

    def _can_run(self, sequence: S) -> bool:
        return not sequence.request.is_blocked and self._num_positions(sequence) > sequence.num_computed

    def _admissible(self) -> list[S]:
        """The waiting sequences that get a place now, in order, while their known positions and one more fit.

        What the running sequences need for theirs is kept for them. Without the one more, a preempted sequence would
        come back only to yield again at once.
        """
        if not self._waiting or len(self._running) == self._max_num_seqs:
            return []
        unused = self._pool.num_free - sum(map(self._num_missing, self._running))
        admissible: list[S] = []
        for sequence in filter(self._can_run, self._waiting):
            unused -= self._num_missing(sequence)
            num_running = len(self._running) + len(admissible)
            if num_running == self._max_num_seqs or (unused < 0 and num_running):
                break
            admissible.append(sequence)
        return admissible

    def _num_missing(self, sequence: S) -> int:
        """Blocks that the sequence has not got for its known positions and one more."""
        return self._pool.blocks_for(self._num_positions(sequence) + 1) - len(sequence.blocks)

    def _grow(self, sequence: S, length: int, spans: dict[S, ScheduledSpan[S]]) -> bool:
        """Blocks for `length` positions; False if the sequence itself had to yield."""
        missing = self._pool.blocks_for(length) - len(sequence.blocks)
        if missing <= 0:
            return True
        while missing > self._pool.num_free:
            newest = next(s for s in reversed(self._running) if s.blocks or s is sequence)
            self._preempt(newest)
            spans.pop(newest, None)
            if newest is sequence:
                return False
        sequence.blocks += self._pool.take(missing)
        return True

    def _preempt(self, sequence: S) -> None:
        self._running.remove(sequence)
        self._free(sequence)
        insort(self._waiting, sequence, key=_arrival)
        self.num_preemptions += 1

    def _free(self, sequence: S) -> None:
        self._pool.give_back(sequence.blocks)
        sequence.blocks, sequence.num_computed = [], 0

    def _misfit(self, sequence: S, length: int) -> StageError | None:
        """Why the sequence can never have `length` positions."""
        capacity = self._pool.num_blocks * self._pool.block_size
        if length <= capacity:
            return None
        return StageError(
            f"{sequence.request.request_id} needs {length} positions in the KV cache, which holds {capacity}; "
            "shorten the request or raise stages.<name>.num_kv_blocks",
            code="context_length_exceeded",
        )


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival
