"""How a chunk's arrays lie in one buffer: in C order, one behind the other, each 64-byte aligned.

In: a ChunkHeader and arrays, or a header and a buffer. Out: bytes in the buffer, or read-only arrays over it.
Does not know: whose memory the buffer is, or credit.
"""

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.config.pipeline import DTYPES
from antiphon.connector.arena import aligned
from antiphon.errors import StageError
from antiphon.messages.interstage import ChunkHeader, TensorSpec

_WIRE_DTYPES = {name: np.dtype("uint16" if name == "bfloat16" else name) for name in DTYPES}
"""numpy has no bfloat16: its bits travel, and are delivered, as uint16."""
_MAX_NDIM = 32
_MAX_ARRAY_BYTES = 2**48


def chunk_error(header: ChunkHeader, problem: str) -> StageError:
    """A StageError that names the chunk."""
    return StageError(f"chunk {header.seq} of {header.request_id} on {header.edge} from {header.producer}: {problem}")


@dataclass(frozen=True)
class Layout:
    """Where each array of one chunk begins. `size_bytes` is what the chunk takes, padding included."""

    header: ChunkHeader
    offsets: tuple[int, ...]
    payload_bytes: int
    size_bytes: int

    @classmethod
    def of(cls, header: ChunkHeader) -> "Layout":
        """The layout that both ends compute from the header; StageError if a descriptor makes no sense."""
        offsets, payload_bytes, end = [], 0, 0
        for spec in header.tensors:
            num_bytes = _num_bytes(header, spec)
            offsets.append(end)
            payload_bytes += num_bytes
            end += aligned(num_bytes)
        if len({spec.key for spec in header.tensors}) != len(header.tensors):
            raise chunk_error(header, "two arrays have the same key")
        return cls(header, tuple(offsets), payload_bytes, end)

    def check(self, arrays: Sequence[np.ndarray], max_chunk_bytes: int) -> None:
        """StageError unless `arrays` are what the header says and fit one chunk."""
        tensors = self.header.tensors
        if len(arrays) != len(tensors):
            raise chunk_error(self.header, f"{len(tensors)} arrays are declared and {len(arrays)} given")
        for spec, array in zip(tensors, arrays, strict=True):
            if array.dtype != _WIRE_DTYPES[spec.dtype] or array.shape != spec.shape:
                declared, given = f"{spec.dtype} {spec.shape}", f"{array.dtype} {array.shape}"
                raise chunk_error(self.header, f"{spec.key} is declared as {declared} and given as {given}")
        if self.payload_bytes > max_chunk_bytes:
            size, limit = self.payload_bytes, max_chunk_bytes
            raise chunk_error(self.header, f"{size} bytes are over the {limit} of one chunk; raise arena_bytes")

    def write(self, arrays: Sequence[np.ndarray], target: bytearray | mmap.mmap, start: int) -> None:
        """Copy `arrays` to their places in `target`, counted from `start`."""
        for array, offset in zip(arrays, self.offsets, strict=True):
            np.ndarray(array.shape, array.dtype, target, start + offset)[...] = array

    def read(self, source: bytes | mmap.mmap, start: int) -> dict[str, np.ndarray]:
        """Views of the arrays in the read-only `source`, counted from `start`; StageError if it is too short."""
        if start < 0 or start + self.size_bytes > len(source):
            end = start + self.size_bytes
            raise chunk_error(self.header, f"bytes {start} to {end} are outside the {len(source)} of its buffer")
        return {
            spec.key: np.ndarray(spec.shape, _WIRE_DTYPES[spec.dtype], source, start + offset)
            for spec, offset in zip(self.header.tensors, self.offsets, strict=True)
        }


def _num_bytes(header: ChunkHeader, spec: TensorSpec) -> int:
    dtype = _WIRE_DTYPES.get(spec.dtype)
    if dtype is None:
        raise chunk_error(header, f"{spec.key} has the unknown dtype {spec.dtype!r}")
    extent_bytes = math.prod(max(size, 1) for size in spec.shape) * dtype.itemsize
    if len(spec.shape) > _MAX_NDIM or min(spec.shape, default=0) < 0 or extent_bytes > _MAX_ARRAY_BYTES:
        raise chunk_error(header, f"{spec.key} has an impossible shape {spec.shape}")
    return 0 if 0 in spec.shape else extent_bytes
