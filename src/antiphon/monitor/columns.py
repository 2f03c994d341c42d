"""The columnar JSON file of the monitor: one list per figure, one entry per window.

In: windows, one at a time. Out: the file, written by streaming; read back as Columns. Memory is bounded by one block of
windows, however long the run was. Does not know: loops, verdicts.
"""

import os
import tempfile
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec

from antiphon.errors import ConfigError
from antiphon.monitor.lines import LinesReader, lines_path
from antiphon.monitor.windows import EdgeWindow, LoopWindow, ReplicaWindow, Window

Group = dict[str, dict[str, list[float]]]
ColumnName = tuple[str, str, str]  # group, key ("" for the loop's), field
BLOCK_WINDOWS = 2048


class Columns(msgspec.Struct, frozen=True):
    """A columnar file, read. Every list has one entry per window."""

    configured_window_s: float
    windows: dict[str, list[float]]
    replicas: Group
    edges: Group = {}

    @property
    def num_windows(self) -> int:
        """How many windows there are."""
        return len(self.windows["duration_s"])

    def total(self, group: str, key: str, name: str) -> tuple[float, float]:
        """Sum and maximum of one column (group "windows": key ""); 0 if there is none."""
        values = self.column(group, key, name)
        return sum(values), max(values, default=0.0)

    def keys(self, group: str) -> list[str]:
        """The keys of "replicas" or "edges"."""
        return list(self._group(group))

    def column(self, group: str, key: str, name: str) -> list[float]:
        """One column (group "windows": key ""); zeros if there is none."""
        fields = self.windows if group == "windows" else self._group(group).get(key, {})
        return fields.get(name) or [0] * self.num_windows

    def _group(self, group: str) -> Group:
        return self.replicas if group == "replicas" else self.edges


@dataclass
class _Column:
    """One figure: a part in memory, and where earlier blocks of it lie in the spool (offset and size; size 0 = zeros).

    first_block: the blocks before it had no such figure.
    """

    first_block: int
    values: list[float] = field(default_factory=list)
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    sizes: "array[int]" = field(default_factory=lambda: array("q"))
    total: float = 0.0
    maximum: float = 0.0

    def put(self, row: int, value: float) -> None:
        """Set the value of a row of this block; rows between are 0."""
        self.values.extend([0] * (row - len(self.values)))
        self.values.append(value)
        self.total += value
        self.maximum = max(self.maximum, value)


class ColumnSpool:
    """Owns one block of windows in memory, and the earlier ones in a file without a name in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._spool: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._columns: dict[ColumnName, _Column] = {}
        self._num_blocks = 0
        self._row = 0
        for name in LoopWindow.__struct_fields__:
            self._columns["windows", "", name] = _Column(0)

    @property
    def num_windows(self) -> int:
        """Windows added so far."""
        return self._num_blocks * BLOCK_WINDOWS + self._row

    def add(self, window: Window) -> None:
        """Take in the next window; OSError if the spool cannot be written."""
        self._put("windows", "", window.window)
        for key, replica in window.replicas.items():
            self._put("replicas", key, replica)
        for key, edge in window.edges.items():
            self._put("edges", key, edge)
        self._row += 1
        if self._row == BLOCK_WINDOWS:
            self._spill()
            self._num_blocks += 1
            self._row = 0

    def total(self, group: str, key: str, name: str) -> tuple[float, float]:
        """Sum and maximum of one column; 0 if there is none."""
        column = self._columns.get((group, key, name), _Column(0))
        return column.total, column.maximum

    def keys(self, group: str) -> list[str]:
        """The keys of "replicas" or "edges", in the order of their coming."""
        return list(dict.fromkeys(key for found, key, _ in self._columns if found == group))

    def write(self, target: Path, configured_window_s: float) -> None:
        """Write the columnar file beside `target`, then put it there at once; OSError as the file system gives it."""
        if target.exists() and not target.is_file():
            raise OSError(f"{target} is not a plain file")
        self._spill()
        beside = target.with_name(f"{target.name}.tmp")
        with beside.open("wb") as file:
            file.write(b'{"configured_window_s":%s,"windows":' % msgspec.json.encode(configured_window_s))
            self._write_fields(file, "windows", "")
            for group in ("replicas", "edges"):
                file.write(b',"%s":{' % group.encode())
                for number, key in enumerate(self.keys(group)):
                    file.write(b"%s\n%s:" % (b"," if number else b"", msgspec.json.encode(key)))
                    self._write_fields(file, group, key)
                file.write(b"}")
            file.write(b"}\n")
        os.replace(beside, target)

    def close(self) -> None:
        """Drop the spool."""
        self._spool.close()

    def _put(self, group: str, key: str, record: LoopWindow | ReplicaWindow | EdgeWindow) -> None:
        for name, value in zip(record.__struct_fields__, msgspec.structs.astuple(record), strict=True):
            column = self._columns.get((group, key, name))
            if column is None:
                column = self._columns[group, key, name] = _Column(self._num_blocks)
            column.put(self._row, value)

    def _spill(self) -> None:
        """Move the block to the spool."""
        for column in self._columns.values():
            text = b""
            if any(column.values):
                column.values.extend([0] * (self._row - len(column.values)))
                text = msgspec.json.encode(column.values)[1:-1]
            column.offsets.append(self._spool.tell())
            column.sizes.append(len(text))
            column.values.clear()
            self._spool.write(text)

    def _write_fields(self, file: IO[bytes], group: str, key: str) -> None:
        file.write(b"{")
        names = [name for found, found_key, name in self._columns if (found, found_key) == (group, key)]
        for number, name in enumerate(names):
            file.write(b'%s"%s":[' % (b"," if number else b"", name.encode()))
            self._write_values(file, self._columns[group, key, name])
            file.write(b"]")
        file.write(b"}")

    def _write_values(self, file: IO[bytes], column: _Column) -> None:
        is_first = True
        for block, rows in self._blocks():
            text = self._read(column, block - column.first_block) or b",".join([b"0"] * rows)
            file.write(text if is_first else b"," + text)
            is_first = False

    def _blocks(self) -> Iterable[tuple[int, int]]:
        """Number and rows of every block, the last, unfinished one included."""
        yield from ((block, BLOCK_WINDOWS) for block in range(self._num_blocks))
        if self._row:
            yield self._num_blocks, self._row

    def _read(self, column: _Column, index: int) -> bytes:
        if index < 0 or not column.sizes[index]:
            return b""
        self._spool.seek(column.offsets[index])
        return self._spool.read(column.sizes[index])


def spool_lines(reader: LinesReader, folder: Path) -> ColumnSpool:
    """Every window of a JSON-lines file in a spool, whose temporary file is in `folder`."""
    spool = ColumnSpool(folder)
    for window in reader.windows():
        spool.add(window)
    return spool


def convert(lines: Path, target: Path) -> ColumnSpool:
    """Make the columnar file from the lines; gives the spool, which has sums and maxima. The caller closes it."""
    reader = LinesReader(lines)
    header = reader.header()
    spool = spool_lines(reader, target.parent)
    spool.write(target, header.configured_window_s)
    return spool


def read_columns(path: Path) -> Columns:
    """Read a columnar file, or the lines of one; ConfigError if it is neither, or if columns differ in length."""
    if path.suffix == ".jsonl":
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "columns.json"
            convert(path, target).close()
            return read_columns(target)
    try:
        columns = msgspec.json.decode(path.read_bytes(), type=Columns)
    except (OSError, msgspec.DecodeError) as error:
        hint = f"; its windows are in {lines_path(path)}" if lines_path(path).exists() else ""
        raise ConfigError([f"{path} is no file of the monitor: {error}{hint}"]) from error
    if len(set(_lengths(columns))) != 1 or "duration_s" not in columns.windows:
        raise ConfigError([f"{path}: its columns have different lengths: {sorted(set(_lengths(columns)))}"])
    return columns


def _lengths(columns: Columns) -> Iterable[int]:
    yield from map(len, columns.windows.values())
    for group in (columns.replicas, columns.edges):
        for fields in group.values():
            yield from map(len, fields.values())
