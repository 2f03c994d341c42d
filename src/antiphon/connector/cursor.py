"""The producer's side of one request on one edge: rows accumulate, chunks are cut by the edge's plan.

In: arrays per step, and how the stage ended. Out: chunks put to the connector as credit allows.
Does not know: models, stages, or what starts a consumer.
"""

import time
from collections import deque
from dataclasses import dataclass

import numpy as np

from antiphon.config.pipeline import ChunkPlan
from antiphon.connector.base import Connector
from antiphon.connector.edge_meter import EdgeMeter
from antiphon.errors import StageError
from antiphon.messages.error_info import ErrorInfo
from antiphon.messages.interstage import ChunkFlag, ChunkHeader, TensorSpec

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class EdgeTarget:
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
        self._rows: deque[Arrays] = deque()
        self._whole: Arrays = {}
        self._seq = 0
        self._end: ChunkFlag = ChunkFlag.NONE
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
    def is_terminating(self) -> bool:
        """True from `finish` or `fail` on."""
        return self._end is not ChunkFlag.NONE

    def append(self, rows: Arrays, whole: Arrays) -> None:
        """Add rows (key -> [n, ...], equal n) and arrays of the request as a whole.

        The arrays now belong to the cursor; read-only ones are views of somebody's memory and are copied.
        StageError if a row has no bytes (what takes no credit has no bound), or if one row and the whole arrays exceed
        the connector's largest chunk.
        After `replay_from`, rows that were produced before are dropped.
        """
        self._check_fits(rows, whole)
        self._whole.update({key: _owned(array) for key, array in whole.items()})
        count = _num_rows(rows)
        if self._replay_row is not None:
            repeated = min(count, self.rows_produced - self._replay_row)
            self._replay_row += repeated
            if self._replay_row == self.rows_produced:
                self._replay_row = None
            rows = {key: array[repeated:] for key, array in rows.items()}
            count -= repeated
        if count:
            self._rows.append({key: _owned(array) for key, array in rows.items()})
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
        if not self.is_terminating:
            self._end = ChunkFlag.END

    def fail(self, flag: ChunkFlag, error: ErrorInfo | None) -> None:
        """Drop what is pending and send ERROR or ABORT instead of END, unless the edge is closed or has failed."""
        if self._end in (ChunkFlag.ERROR, ChunkFlag.ABORT):
            return
        self._rows.clear()
        self._whole.clear()
        self._end, self._error = flag, error

    def abandon(self) -> None:
        """The consumer's process has ended: drop what is pending and send nothing more."""
        self._rows.clear()
        self._whole.clear()
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
                fewer = self._max_rows(connector.window_bytes)
                if fewer >= count or not self._put(connector, fewer):
                    self._is_refused = True
                    return False
            self._is_refused, self._refused_since_s = False, None
        return True

    def _put(self, connector: Connector, count: int) -> bool:
        whole, rows = self._whole, self._peek(count)
        is_last = self.is_terminating and self.rows_sent + count == self.rows_produced
        buffers, began_s = _values(rows, whole), time.perf_counter()
        if not connector.put(self.target.address, self._header(rows, whole, count, is_last), buffers):
            return False
        self._meter.sent(count, sum(array.nbytes for array in buffers), time.perf_counter() - began_s)
        self._sent(count, is_last)
        return True

    def _due_rows(self) -> int | None:
        """Rows of the next chunk, or None if none is due."""
        if self._closed:
            return None
        pending = self.rows_produced - self.rows_sent
        if self._end in (ChunkFlag.ERROR, ChunkFlag.ABORT):
            self.rows_produced = self.rows_sent
            return 0
        plan = self.target.plan
        wanted = plan.first_rows if self._seq == 0 else plan.rows
        if not self.is_terminating and (wanted is None or pending < max(1, wanted)):
            return None
        return min(pending, self._max_rows(self._max_chunk_bytes))

    def _max_rows(self, num_bytes: int) -> int:
        """How many of the next rows, and what goes beside them, `num_bytes` hold; at least one if there are any."""
        if not self._rows:
            return 0
        room = num_bytes - sum(array.nbytes for array in self._whole.values())
        return max(1, room // max(1, _row_bytes(self._rows[0])))

    def _check_fits(self, rows: Arrays, whole: Arrays) -> None:
        whole_bytes = sum(array.nbytes for array in {**self._whole, **whole}.values())
        if _num_rows(rows) and not _row_bytes(rows):
            raise StageError(
                f"{self.target.edge} of {self.target.request_id}: {_num_rows(rows)} rows of no bytes, "
                "which would take no credit; hand off arrays that have something in them"
            )
        row_bytes = max(_row_bytes(rows), _row_bytes(self._rows[0]) if self._rows else 0)
        if row_bytes + whole_bytes > self._max_chunk_bytes:
            raise StageError(
                f"{self.target.edge} of {self.target.request_id}: one row of {row_bytes} bytes and {whole_bytes} bytes "
                f"beside it exceed the largest chunk ({self._max_chunk_bytes} bytes); raise connector.arena_mib"
            )

    def _peek(self, count: int) -> Arrays:
        """The next `count` rows in one array per key; what is joined once stays joined."""
        if not count:
            return {}
        joined = [self._rows.popleft()]
        total = _num_rows(joined[0])
        while total < count:
            joined.append(self._rows.popleft())
            total += _num_rows(joined[-1])
        if len(joined) > 1:
            joined = [{key: np.concatenate([piece[key] for piece in joined]) for key in joined[0]}]
        self._rows.appendleft(joined[0])
        return {key: array[:count] for key, array in self._rows[0].items()}

    def _header(self, rows: Arrays, whole: Arrays, count: int, is_last: bool) -> ChunkHeader:
        tensors = [TensorSpec(key, _dtype(array), array.shape, True) for key, array in rows.items()]
        tensors += [TensorSpec(key, _dtype(array), array.shape, False) for key, array in whole.items()]
        return ChunkHeader(
            request_id=self.target.request_id,
            epoch=self.target.epoch,
            edge=self.target.edge,
            producer=self.target.producer,
            seq=self._seq,
            first_row=self.rows_sent,
            rows=count,
            flags=int(self._end) if is_last else 0,
            tensors=tuple(tensors),
            error=self._error if is_last else None,
        )

    def _sent(self, count: int, is_last: bool) -> None:
        self._seq += 1
        self.rows_sent += count
        self._whole = {}
        self._closed = is_last
        if count:
            rest = {key: array[count:] for key, array in self._rows.popleft().items()}
            if _num_rows(rest):
                self._rows.appendleft(rest)


def _dtype(array: np.ndarray) -> str:
    """Its name in a header; numpy holds bfloat16 as uint16, which stands for nothing else."""
    return "bfloat16" if array.dtype == np.uint16 else array.dtype.name


def _owned(array: np.ndarray) -> np.ndarray:
    return array if array.flags.writeable else array.copy()


def _num_rows(rows: Arrays) -> int:
    return len(next(iter(rows.values()))) if rows else 0


def _row_bytes(rows: Arrays) -> int:
    return sum(array.nbytes // len(array) for array in rows.values() if len(array))


def _values(rows: Arrays, whole: Arrays) -> list[np.ndarray]:
    return [*rows.values(), *whole.values()]
