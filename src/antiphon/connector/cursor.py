"""The producer's side of one request on one edge: rows accumulate, chunks are cut by the edge's plan.

In: arrays per step, and how the stage ended. Out: chunks put to the connector as credit allows.
Does not know: models, stages, or what starts a consumer.
"""

import time
from collections import deque
from functools import lru_cache

import msgspec
import numpy as np

from antiphon.config.pipeline import ChunkPlan
from antiphon.connector.arena import ALIGNMENT_BYTES
from antiphon.connector.base import Connector
from antiphon.connector.edge_meter import EdgeMeter
from antiphon.connector.layout import Arrays
from antiphon.errors import StageError
from antiphon.messages.error_info import ErrorInfo
from antiphon.messages.interstage import FAILED, ChunkFlag, ChunkForm, ChunkHeader, TensorSpec

_MAX_SPECS = 256


class EdgeTarget(msgspec.Struct, frozen=True):
    """Where one request's rows on an edge go, and in which chunks."""

    request_id: str
    epoch: int
    edge: str
    producer: str
    address: str
    plan: ChunkPlan


class EdgeCursor:
    """Owns the rows of one request on one edge that have been produced and not been sent.

    Rows are numbered from 0 per request and edge. `rows_produced - rows_sent` rows are pending. `meter` counts what
    is sent, for all requests of the edge.
    """

    def __init__(self, target: EdgeTarget, max_chunk_bytes: int, meter: EdgeMeter | None = None) -> None:
        self.target = target
        self._meter = meter or EdgeMeter()
        self.rows_produced = 0
        self.rows_sent = 0
        self._max_chunk_bytes = max_chunk_bytes
        self._replay_row: int | None = None
        self._pieces: deque[Arrays] = deque()
        """What is not sent, in the pieces in which it came."""
        self._whole: Arrays = {}
        self._form = self._form_of((), ())
        """Of chunks without whole arrays; it has no tensors before the first rows have come."""
        self._row_bytes = self._whole_bytes = 0
        self._seq = 0
        self._end = 0
        self._error: ErrorInfo | None = None
        self._closed = False
        self._is_refused = False
        self._refused_since_s: float | None = None

    @property
    def next_seq(self) -> int:
        """The number of the chunk that is put next."""
        return self._seq

    @property
    def is_refused(self) -> bool:
        """True while a chunk waits for credit."""
        return self._is_refused

    @property
    def is_closed(self) -> bool:
        """True when the terminal chunk has been sent, or nobody is left to send it to."""
        return self._closed

    @property
    def takes_rows(self) -> bool:
        """False from `finish`, `fail` or `abandon` on."""
        return not self._end and not self._closed

    def append(self, rows: Arrays, whole: Arrays) -> None:
        """Add rows (key -> [n, ...], equal n, always of the same keys, dtypes and row shapes) and whole arrays.

        Only while `takes_rows`. The arrays now belong to the cursor; it copies read-only ones.
        StageError if a row has no bytes (what takes no credit has no bound), or if one row and the whole arrays exceed
        the connector's largest chunk.
        After `replay_from`, rows that were produced before are dropped.
        """
        count = _num_rows(rows)
        if whole or (count and not self._row_bytes):
            self._declare(rows, whole)
        if count and self._replay_row is not None:
            rows = self._without_repeated(rows, count)
            count = _num_rows(rows)
        if count:
            self._pieces.append(_owned(rows))
            self.rows_produced += count

    def replay_from(self, row: int) -> None:
        """A preempted request starts again at `row`; rows below `rows_produced` are dropped when they come again.

        StageError if there are no rows before `row`.
        """
        if not 0 <= row <= self.rows_produced:
            raise StageError(
                f"{self.target.edge} of {self.target.request_id}: row {row} came where {self.rows_produced} was next; "
                "an engine that makes rows again starts at one it has made"
            )
        self._replay_row = row

    def finish(self) -> None:
        """Nothing more will be appended; END follows the last row."""
        if not self._end:
            self._end = int(ChunkFlag.END)

    def fail(self, flag: ChunkFlag, error: ErrorInfo | None) -> None:
        """Drop what is pending and send ERROR or ABORT instead of END, unless the edge is closed or has failed."""
        if self._end & FAILED:
            return
        self._drop_pending()
        self._end, self._error = int(flag), error

    def abandon(self) -> None:
        """The consumer's process has ended: drop what is pending and send nothing more."""
        self._drop_pending()
        self._closed, self._is_refused = True, False

    def waited_s(self, now_s: float) -> float:
        """How long, as of `now_s`, the next chunk has waited for credit; counted from the first call that asks."""
        if not self._is_refused:
            return 0.0
        if self._refused_since_s is None:
            self._refused_since_s = now_s
        return now_s - self._refused_since_s

    def flush(self, connector: Connector) -> bool:
        """Put every chunk that is due; False if credit ran out before that.

        What does not fit as one chunk is tried as what the request's window holds, even if that is less than the plan.
        """
        while (count := self._due_rows()) is not None:
            if not self._put(connector, count):
                padding_bytes = ALIGNMENT_BYTES * (len(self._form.tensors) + len(self._whole))
                fewer = self._max_rows(connector.window_bytes - padding_bytes)
                if fewer >= count or not self._put(connector, fewer):
                    self._is_refused = True
                    return False
            self._is_refused, self._refused_since_s = False, None
        return True

    def _put(self, connector: Connector, count: int) -> bool:
        is_last = self._end != 0 and self.rows_sent + count == self.rows_produced
        form = self._form_of(self._form.tensors, _specs(self._whole, per_row=False)) if self._whole else self._form
        end, error = (self._end, self._error) if is_last else (0, None)
        began_s = time.perf_counter()
        header = ChunkHeader(form, self._seq, self.rows_sent, count, end, error)
        if not connector.put(self.target.address, header, self._pieces, self._whole):
            return False
        num_bytes = count * self._row_bytes + self._whole_bytes
        self._meter.sent(count, num_bytes, time.perf_counter() - began_s)
        self._seq += 1
        self._closed = is_last
        self._sent(count)
        return True

    def _due_rows(self) -> int | None:
        """Rows of the next chunk, or None if none is due."""
        if self._closed:
            return None
        pending = self.rows_produced - self.rows_sent
        if self._end & FAILED:
            return 0
        if not self._end:
            plan = self.target.plan
            wanted = plan.first_rows if self._seq == 0 else plan.rows
            if not pending or wanted is None or pending < wanted:
                return None
        if pending * self._row_bytes + self._whole_bytes <= self._max_chunk_bytes:
            return pending
        return min(pending, self._max_rows(self._max_chunk_bytes))

    def _max_rows(self, num_bytes: int) -> int:
        """How many of the next rows, and what goes beside them, `num_bytes` hold; at least one if there are any."""
        return max(1, (num_bytes - self._whole_bytes) // self._row_bytes) if self._pieces else 0

    def _declare(self, rows: Arrays, whole: Arrays) -> None:
        """Take in whole arrays, and of what form the first rows are; StageError: see `append`."""
        count = _num_rows(rows)
        row_bytes = self._row_bytes or (sum(array.nbytes for array in rows.values()) // count if count else 0)
        whole_bytes = sum(array.nbytes for array in {**self._whole, **whole}.values())
        if count and not row_bytes:
            raise StageError(
                f"{self.target.edge} of {self.target.request_id}: {count} rows of no bytes, "
                "which would take no credit; hand off arrays that have something in them"
            )
        if row_bytes + whole_bytes > self._max_chunk_bytes:
            raise StageError(
                f"{self.target.edge} of {self.target.request_id}: one row of {row_bytes} bytes and {whole_bytes} bytes "
                f"beside it exceed the largest chunk ({self._max_chunk_bytes} bytes); raise connector.arena_mib"
            )
        if count and not self._row_bytes:
            self._form = self._form_of(_specs(rows, per_row=True), ())
        self._row_bytes, self._whole_bytes = row_bytes, whole_bytes
        self._whole.update(_owned(whole))

    def _without_repeated(self, rows: Arrays, count: int) -> Arrays:
        assert self._replay_row is not None
        repeated = min(count, self.rows_produced - self._replay_row)
        self._replay_row += repeated
        if self._replay_row == self.rows_produced:
            self._replay_row = None
        return {key: array[repeated:] for key, array in rows.items()}

    def _form_of(self, rows: tuple[TensorSpec, ...], whole: tuple[TensorSpec, ...]) -> ChunkForm:
        target = self.target
        return ChunkForm(target.request_id, target.epoch, target.edge, target.producer, rows + whole)

    def _sent(self, count: int) -> None:
        """Let go of the next `count` rows and of the whole arrays."""
        self.rows_sent += count
        if self.rows_sent == self.rows_produced:
            self._pieces.clear()
            count = 0
        while count:
            piece = self._pieces.popleft()
            count -= _num_rows(piece)
            if count < 0:
                self._pieces.appendleft({key: array[count:] for key, array in piece.items()})
                count = 0
        if self._whole:
            self._whole, self._whole_bytes = {}, 0

    def _drop_pending(self) -> None:
        """Of the arrays, nothing is left to send or to declare."""
        self.rows_produced = self.rows_sent
        self._pieces.clear()
        self._whole, self._whole_bytes = {}, 0
        self._form = self._form_of((), ())


def _specs(arrays: Arrays, *, per_row: bool) -> tuple[TensorSpec, ...]:
    return tuple(
        _spec(key, array.dtype, array.shape[1:] if per_row else array.shape, per_row) for key, array in arrays.items()
    )


@lru_cache(_MAX_SPECS)
def _spec(key: str, dtype: np.dtype, shape: tuple[int, ...], per_row: bool) -> TensorSpec:
    """numpy holds bfloat16 as uint16, which stands for nothing else."""
    return TensorSpec(key, "bfloat16" if dtype == np.uint16 else dtype.name, shape, per_row)


def _owned(arrays: Arrays) -> Arrays:
    for array in arrays.values():
        if not array.flags.writeable:
            return {key: array if array.flags.writeable else array.copy() for key, array in arrays.items()}
    return dict(arrays)


def _num_rows(rows: Arrays) -> int:
    for array in rows.values():
        return len(array)
    return 0
