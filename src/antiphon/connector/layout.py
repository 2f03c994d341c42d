"""How a chunk's arrays lie in one buffer: in C order, one behind the other, each 64-byte aligned.

In: a ChunkHeader and arrays, or a header and a buffer. Out: bytes in the buffer, or read-only arrays over it.
Does not know: whose memory the buffer is, or credit.
"""

import math
import mmap
from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np

from antiphon.config.pipeline import DTYPES
from antiphon.connector.arena import aligned
from antiphon.errors import StageError
from antiphon.messages.interstage import ChunkForm, ChunkHeader, TensorSpec

Arrays = dict[str, np.ndarray]
_WIRE_DTYPES = {name: np.dtype("uint16" if name == "bfloat16" else name) for name in DTYPES}
"""numpy has no bfloat16: its bits travel, and are delivered, as uint16."""
_MAX_NDIM = 31
_MAX_ARRAY_BYTES = 2**48
_MAX_ROW_BYTES = _MAX_ROWS = 2**31
_MAX_FORMS = 1024  # of about 2 KiB each; with more edges of open requests than that a chunk takes longer, no more
_FORM = msgspec.msgpack.Decoder(ChunkForm)


def chunk_error(header: ChunkHeader, problem: str) -> StageError:
    """A StageError that names the chunk."""
    form = header.form
    return StageError(f"chunk {header.seq} of {form.request_id} on {form.edge} from {form.producer}: {problem}")


def form_of(encoded: bytes) -> ChunkForm:
    """The inverse of ChunkForm.encoded; StageError if it is none."""
    try:
        return _FORM.decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StageError(f"the form of a chunk cannot be read: {error}") from error


@lru_cache(_MAX_FORMS)
def layout_of(encoded: bytes) -> "Layout":
    """The layout that both ends compute from ChunkForm.encoded; StageError if a descriptor makes no sense."""
    return Layout(form_of(encoded))


class _Field(NamedTuple):
    """One array's place. num_bytes: of a row if it is PER_ROW."""

    key: str
    dtype: np.dtype
    shape: tuple[int, ...]
    num_bytes: int


class Layout:
    """Owns what is worked out once for all chunks of a form: PER_ROW arrays first, then those of the whole request."""

    def __init__(self, form: ChunkForm) -> None:
        self.form = form
        self._per_row: list[_Field] = []
        self._whole: list[_Field] = []
        self._row_bytes = self._whole_bytes = self._whole_size_bytes = 0
        for spec in form.tensors:
            field = _field(form, spec)
            if spec.per_row:
                self._per_row.append(field)
                self._row_bytes += field.num_bytes
            else:
                self._whole.append(field)
                self._whole_bytes += field.num_bytes
                self._whole_size_bytes += aligned(field.num_bytes)
        if len({spec.key for spec in form.tensors}) != len(form.tensors):
            raise _form_error(form, "two arrays have the same key")

    def payload_bytes(self, num_rows: int) -> int:
        """What a chunk of that many rows carries."""
        return self._row_bytes * num_rows + self._whole_bytes

    def size_bytes(self, num_rows: int) -> int:
        """What it takes, padding included."""
        size_bytes = self._whole_size_bytes
        for field in self._per_row:
            size_bytes += aligned(field.num_bytes * num_rows)
        return size_bytes

    def check(self, header: ChunkHeader, rows: Collection[Arrays], whole: Arrays, max_chunk_bytes: int) -> None:
        """StageError unless the arrays are what the header and its form say and fit one chunk; see Connector.put."""
        left = header.rows
        for piece in rows:
            if left <= 0:
                break
            left -= _check_piece(header, self._per_row, piece)
        if left > 0:
            raise chunk_error(header, f"{header.rows} rows are declared and {header.rows - left} given")
        if len(whole) != len(self._whole):
            raise chunk_error(header, f"{len(self._whole)} whole arrays are declared and {len(whole)} given")
        for field in self._whole:
            array = whole.get(field.key)
            if array is None or array.dtype != field.dtype or array.shape != field.shape:
                raise chunk_error(header, _mismatch(field, array))
        size = self.payload_bytes(header.rows)
        if size > max_chunk_bytes:
            too_large = f"{size} bytes are over the {max_chunk_bytes} of one chunk; raise connector.arena_mib"
            raise chunk_error(header, too_large)

    def write(
        self, num_rows: int, rows: Collection[Arrays], whole: Arrays, target: bytearray | mmap.mmap, start: int
    ) -> None:
        """Copy the first `num_rows` of `rows`, and `whole`, to their places in `target`, counted from `start`."""
        for key, dtype, row_shape, row_bytes in self._per_row if num_rows else ():
            view = np.ndarray((num_rows, *row_shape), dtype, target, start)
            pieces = _first(num_rows, key, rows)
            if len(pieces) == 1:
                view[...] = pieces[0]
            else:
                np.concatenate(pieces, out=view)
            start += aligned(row_bytes * num_rows)
        for key, dtype, shape, num_bytes in self._whole:
            np.ndarray(shape, dtype, target, start)[...] = whole[key]
            start += aligned(num_bytes)

    def read(self, header: ChunkHeader, source: bytes | mmap.mmap, start: int) -> Arrays:
        """Views of the arrays in the read-only `source`, counted from `start`; StageError if it is too short.

        A chunk of no rows has no PER_ROW arrays.
        """
        num_rows = header.rows
        if not 0 <= num_rows <= _MAX_ROWS:
            raise chunk_error(header, f"it has an impossible number of rows, {num_rows}")
        end = start + self.size_bytes(num_rows)
        if start < 0 or end > len(source):
            raise chunk_error(header, f"bytes {start} to {end} are outside the {len(source)} of its buffer")
        arrays = {}
        for key, dtype, row_shape, row_bytes in self._per_row if num_rows else ():
            arrays[key] = np.ndarray((num_rows, *row_shape), dtype, source, start)
            start += aligned(row_bytes * num_rows)
        for key, dtype, shape, num_bytes in self._whole:
            arrays[key] = np.ndarray(shape, dtype, source, start)
            start += aligned(num_bytes)
        return arrays


def _first(num_rows: int, key: str, rows: Collection[Arrays]) -> list[np.ndarray]:
    """The first `num_rows` rows of `key`, in pieces."""
    pieces = []
    for piece in rows:
        array = piece[key]
        count = len(array)
        pieces.append(array if count <= num_rows else array[:num_rows])
        num_rows -= count
        if num_rows <= 0:
            break
    return pieces


def _check_piece(header: ChunkHeader, fields: list[_Field], piece: Arrays) -> int:
    """Rows of a piece; StageError if it is not of these fields."""
    count = -1
    for field in fields:
        array = piece.get(field.key)
        if array is None or array.dtype != field.dtype or array.shape[1:] != field.shape:
            raise chunk_error(header, _mismatch(field, array))
        if count not in (-1, len(array)):
            raise chunk_error(header, f"{field.key} has {len(array)} rows where others have {count}")
        count = len(array)
    if len(piece) != len(fields):
        raise chunk_error(header, f"{len(fields)} arrays are declared and {len(piece)} given")
    return count


def _mismatch(field: _Field, array: np.ndarray | None) -> str:
    given = "not given" if array is None else f"given as {array.dtype} {array.shape}"
    return f"{field.key} is declared as {field.dtype} {field.shape} and {given}"


def _field(form: ChunkForm, spec: TensorSpec) -> _Field:
    dtype = _WIRE_DTYPES.get(spec.dtype)
    if dtype is None:
        raise _form_error(form, f"{spec.key} has the unknown dtype {spec.dtype!r}")
    extent_bytes = math.prod(max(size, 1) for size in spec.shape) * dtype.itemsize
    max_bytes = _MAX_ROW_BYTES if spec.per_row else _MAX_ARRAY_BYTES
    if len(spec.shape) > _MAX_NDIM or min(spec.shape, default=0) < 0 or extent_bytes > max_bytes:
        raise _form_error(form, f"{spec.key} has an impossible shape {spec.shape}")
    return _Field(spec.key, dtype, spec.shape, 0 if 0 in spec.shape else extent_bytes)


def _form_error(form: ChunkForm, problem: str) -> StageError:
    return StageError(f"chunks of {form.request_id} on {form.edge} from {form.producer}: {problem}")
