"""The inter-stage lane: chunks of rows from one stage's replica to the next.

In: arrays that a model handed off. Out: a ChunkHeader, descriptors, and raw buffers beside it.
Does not know: what the rows mean, or how a connector moves the buffers.
"""

from enum import IntFlag

import msgspec

from antiphon.messages.error_info import ErrorInfo


class ChunkFlag(IntFlag):
    """What a chunk says beyond its rows. END, ERROR and ABORT are terminal: the last chunk has exactly one."""

    NONE = 0
    END = 1
    ERROR = 2
    ABORT = 4


TERMINAL = ChunkFlag.END | ChunkFlag.ERROR | ChunkFlag.ABORT


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """One array of a chunk: key, numpy dtype name, full shape (axis 0 = rows for PER_ROW keys)."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    per_row: bool


class ChunkHeader(msgspec.Struct, frozen=True, omit_defaults=True):
    """One chunk of an edge. Rows [first_row, first_row + rows) of the request's stream on that edge."""

    request_id: str
    epoch: int
    edge: str
    producer: str
    seq: int
    first_row: int = 0
    rows: int = 0
    flags: int = 0
    tensors: tuple[TensorSpec, ...] = ()
    error: ErrorInfo | None = None

    @property
    def is_terminal(self) -> bool:
        """True for the last chunk of the edge."""
        return bool(self.flags & TERMINAL)
