"""How a chunk's arrays lie in one buffer: in C order, one behind the other, each 64-byte aligned.

In: a ChunkHeader and arrays, or a header and a buffer. Out: bytes in the buffer, or read-only arrays over it.
Does not know: whose memory the buffer is, or credit.
"""

import math
import mmap
from collections.abc import Collection
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, NoReturn

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
_MAX_ARRANGEMENTS = 128  # of about 30 KiB each at most
_MAX_PLACES = 64
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
    """One array. num_bytes: of a row if it is PER_ROW."""

    key: str
    dtype: np.dtype
    shape: tuple[int, ...]
    num_bytes: int


class _Place(NamedTuple):
    """One array of a chunk, and where it begins."""

    key: str
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int


class Places(NamedTuple):
    """Where the arrays of a chunk of so many rows lie. size_bytes: of them all, padding included."""

    payload_bytes: int
    size_bytes: int
    per_row: tuple[_Place, ...]
    whole: tuple[_Place, ...]


class _Arrangement:
    """Owns the places of chunks of any number of rows: PER_ROW arrays first, then those of the whole request."""

    def __init__(self, per_row: tuple[_Field, ...], whole: tuple[_Field, ...]) -> None:
        self.per_row = per_row
        self.whole = whole
        self._known: dict[int, Places] = {}

    def places(self, num_rows: int) -> Places:
        """A chunk of no rows has no PER_ROW arrays."""
        return self._known.get(num_rows) or self._places(num_rows)

    def _places(self, num_rows: int) -> Places:
        end = payload_bytes = 0
        per_row, whole = [], []
        for field in self.per_row if num_rows else ():
            per_row.append(_Place(field.key, field.dtype, (num_rows, *field.shape), end))
            end += aligned(field.num_bytes * num_rows)
            payload_bytes += field.num_bytes * num_rows
        for field in self.whole:
            whole.append(_Place(field.key, field.dtype, field.shape, end))
            end += aligned(field.num_bytes)
            payload_bytes += field.num_bytes
        places = Places(payload_bytes, end, tuple(per_row), tuple(whole))
        if len(self._known) < _MAX_PLACES:
            self._known[num_rows] = places
        return places


@lru_cache(_MAX_ARRANGEMENTS)
def _arrangement_of(tensors: tuple[TensorSpec, ...]) -> _Arrangement:
    """Requests differ in their forms, and hardly in their arrays. StageError: see layout_of."""
    if len({spec.key for spec in tensors}) != len(tensors):
        raise StageError("two arrays have the same key")
    per_row = tuple(_field(spec) for spec in tensors if spec.per_row)
    return _Arrangement(per_row, tuple(_field(spec) for spec in tensors if not spec.per_row))


class Layout:
    """Owns what is worked out once for all chunks of a form; where their arrays lie, for all forms with such arrays."""

    def __init__(self, form: ChunkForm) -> None:
        self.form = form
        try:
            self._arrangement = _arrangement_of(form.tensors)
        except StageError as error:
            chunks = f"chunks of {form.request_id} on {form.edge} from {form.producer}"
            raise StageError(f"{chunks}: {error.message}") from None
        self.places = self._arrangement.places

    def check_size(self, header: ChunkHeader, max_chunk_bytes: int) -> Places:
        """The chunk's places; StageError if it is larger than any may be."""
        places = self.places(header.rows)
        if places.payload_bytes > max_chunk_bytes:
            too_large = f"{places.payload_bytes} bytes are over the {max_chunk_bytes} of one chunk"
            raise chunk_error(header, f"{too_large}; raise connector.arena_mib")
        return places

    def write(
        self, header: ChunkHeader, rows: Collection[Arrays], whole: Arrays, target: bytearray | mmap.mmap, start: int
    ) -> None:
        """Copy the first `header.rows` of `rows`, and `whole`, to their places in `target`, counted from `start`.

        StageError if they are not what the header and its form say, see Connector.put; `target` may be written to then.
        numpy is asked whether the pieces fit, all at once: to look at each of them takes longer than to copy it.
        """
        places, taken = self.places(header.rows), list(islice(rows, header.rows))
        num_keys = len(places.per_row)
        try:
            if num_keys > 1 and not all(map(_are_of_one_length, taken)):
                self._fail(header, rows, whole)
            for key, dtype, shape, offset in places.per_row:
                view, first = np.ndarray(shape, dtype, target, start + offset), taken[0][key]
                if first.shape == shape and first.dtype == dtype:
                    view[...] = first
                else:
                    np.concatenate(_first(header.rows, key, taken), out=view, casting="no")
            for key, dtype, shape, offset in places.whole:
                array = whole[key]
                if array.shape != shape or array.dtype != dtype:
                    self._fail(header, rows, whole)
                np.ndarray(shape, dtype, target, start + offset)[...] = array
        except (IndexError, KeyError, TypeError, ValueError):
            self._fail(header, rows, whole)
        if sum(map(len, taken)) > len(taken) * num_keys or len(whole) > len(places.whole):
            self._fail(header, rows, whole)

    def _fail(self, header: ChunkHeader, rows: Collection[Arrays], whole: Arrays) -> NoReturn:
        """StageError that says what is not as declared."""
        left, arrangement = header.rows, self._arrangement
        for piece in rows:
            if left <= 0:
                break
            left -= _check_piece(header, arrangement.per_row, piece)
        if left > 0:
            raise chunk_error(header, f"{header.rows} rows are declared and {header.rows - left} given")
        if len(whole) != len(arrangement.whole):
            raise chunk_error(header, f"{len(arrangement.whole)} whole arrays are declared and {len(whole)} given")
        for field in arrangement.whole:
            array = whole.get(field.key)
            if array is None or array.dtype != field.dtype or array.shape != field.shape:
                raise chunk_error(header, _mismatch(field, array))
        raise chunk_error(header, "its arrays cannot be copied")

    def read(self, header: ChunkHeader, source: bytes | mmap.mmap, start: int) -> Arrays:
        """Views of the arrays in the read-only `source`, counted from `start`; StageError if it is too short.

        A chunk of no rows has no PER_ROW arrays.
        """
        num_rows = header.rows
        if not 0 <= num_rows <= _MAX_ROWS:
            raise chunk_error(header, f"it has an impossible number of rows, {num_rows}")
        places = self.places(num_rows)
        end = start + places.size_bytes
        if start < 0 or end > len(source):
            raise chunk_error(header, f"bytes {start} to {end} are outside the {len(source)} of its buffer")
        arrays = {}
        for key, dtype, shape, offset in places.per_row:
            arrays[key] = np.ndarray(shape, dtype, source, start + offset)
        for key, dtype, shape, offset in places.whole:
            arrays[key] = np.ndarray(shape, dtype, source, start + offset)
        return arrays


def _are_of_one_length(piece: Arrays) -> bool:
    return len(set(map(len, piece.values()))) <= 1


def _first(num_rows: int, key: str, rows: list[Arrays]) -> list[np.ndarray]:
    """The first `num_rows` rows of `key`, in pieces; all if there are not so many."""
    pieces = [piece[key] for piece in rows]
    surplus = sum(map(len, pieces)) - num_rows
    while surplus > 0:
        last = pieces.pop()
        surplus -= len(last)
        if surplus < 0:
            pieces.append(last[:-surplus])
    return pieces


def _check_piece(header: ChunkHeader, fields: tuple[_Field, ...], piece: Arrays) -> int:
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


def _field(spec: TensorSpec) -> _Field:
    dtype = _WIRE_DTYPES.get(spec.dtype)
    if dtype is None:
        raise StageError(f"{spec.key} has the unknown dtype {spec.dtype!r}")
    extent_bytes = math.prod(max(size, 1) for size in spec.shape) * dtype.itemsize
    max_bytes = _MAX_ROW_BYTES if spec.per_row else _MAX_ARRAY_BYTES
    if len(spec.shape) > _MAX_NDIM or min(spec.shape, default=0) < 0 or extent_bytes > max_bytes:
        raise StageError(f"{spec.key} has an impossible shape {spec.shape}")
    return _Field(spec.key, dtype, spec.shape, 0 if 0 in spec.shape else extent_bytes)
