"""The inter-stage lane: chunks of rows from one stage's replica to the next.

In: which arrays a model hands off. Out: a ChunkForm for a request and edge, a ChunkHeader for each chunk of it.
Does not know: what the rows mean, or how a connector moves the arrays' bytes.
"""

from enum import IntFlag
from functools import cached_property

import msgspec

from antiphon.messages.error_info import ErrorInfo


class ChunkFlag(IntFlag):
    """What a chunk says beyond its rows. END, ERROR and ABORT are terminal: the last chunk has exactly one."""

    NONE = 0
    END = 1
    ERROR = 2
    ABORT = 4


FAILED = int(ChunkFlag.ERROR | ChunkFlag.ABORT)
TERMINAL = int(ChunkFlag.END) | FAILED


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """One array of a chunk: key, numpy dtype name, and the shape of one row if it is PER_ROW, else its own."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    per_row: bool


class ChunkForm(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """What the chunks of one request on one edge have in common: it is written, read and checked once for all.

    A chunk that brings arrays of the request as a whole has a form of its own.
    """

    request_id: str
    epoch: int
    edge: str
    producer: str
    tensors: tuple[TensorSpec, ...] = ()

    @cached_property
    def encoded(self) -> bytes:
        """As it travels, with every chunk: those who know these bytes know the form."""
        return msgspec.msgpack.encode(self)

    @cached_property
    def whole_keys(self) -> frozenset[str]:
        """The arrays that belong to the request as a whole."""
        return frozenset(tensor.key for tensor in self.tensors if not tensor.per_row)


class ChunkHeader(msgspec.Struct, frozen=True):
    """One chunk of an edge. Rows [first_row, first_row + rows) of the request's stream on that edge."""

    form: ChunkForm
    seq: int
    first_row: int = 0
    rows: int = 0
    flags: int = 0
    error: ErrorInfo | None = None

    @property
    def is_terminal(self) -> bool:
        """True for the last chunk of the edge."""
        return self.flags & TERMINAL != 0
