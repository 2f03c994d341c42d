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
BLOCK_WINDOWS = 1024


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
class _Table:
    """The columns of one key: its windows of this block as rows, and where its earlier blocks lie in the spool.

    first_block: the blocks before it had no such key. offsets, sizes: one entry per block and column; size 0 = zeros.
    """

    names: tuple[str, ...]
    first_block: int
    rows: list[tuple[float, ...]] = field(default_factory=list)
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    sizes: "array[int]" = field(default_factory=lambda: array("q"))
    totals: list[float] = field(default_factory=list)
    maxima: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.totals, self.maxima = [0.0] * len(self.names), [0.0] * len(self.names)

    def pad(self, num_rows: int) -> None:
        """Zeros for the windows that did not have the key."""
        self.rows.extend([(0,) * len(self.names)] * (num_rows - len(self.rows)))


class ColumnSpool:
    """Owns one block of windows in memory, and the earlier ones in a file without a name in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._spool: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._tables: dict[tuple[str, str], _Table] = {("windows", ""): _Table(LoopWindow.__struct_fields__, 0)}
        self._num_blocks = 0
        self._num_rows = 0

    @property
    def num_windows(self) -> int:
        """Windows added so far."""
        return self._num_blocks * BLOCK_WINDOWS + self._num_rows

    def add(self, window: Window) -> None:
        """Take in the next window; OSError if the spool cannot be written."""
        self._put("windows", "", window.window)
        for key, replica in window.replicas.items():
            self._put("replicas", key, replica)
        for key, edge in window.edges.items():
            self._put("edges", key, edge)
        self._num_rows += 1
        if self._num_rows == BLOCK_WINDOWS:
            self._spill()
            self._num_blocks += 1
            self._num_rows = 0

    def total(self, group: str, key: str, name: str) -> tuple[float, float]:
        """Sum and maximum of one column, once the file is written; 0 if there is none."""
        table = self._tables.get((group, key))
        if table is None or name not in table.names:
            return 0.0, 0.0
        index = table.names.index(name)
        return table.totals[index], table.maxima[index]

    def keys(self, group: str) -> list[str]:
        """The keys of "replicas" or "edges", in the order of their coming."""
        return [key for found, key in self._tables if found == group]

    def write(self, target: Path, configured_window_s: float) -> None:
        """Write the columnar file beside `target`, then put it there at once; OSError as the file system gives it.

        No window can be added afterwards.
        """
        if target.exists() and not target.is_file():
            raise OSError(f"{target} is not a plain file")
        self._spill()
        beside = target.with_name(f"{target.name}.tmp")
        with beside.open("wb") as file:
            file.write(b'{"configured_window_s":%s,"windows":' % msgspec.json.encode(configured_window_s))
            self._write_table(file, self._tables["windows", ""])
            for group in ("replicas", "edges"):
                file.write(b',"%s":{' % group.encode())
                for number, key in enumerate(self.keys(group)):
                    file.write(b"%s\n%s:" % (b"," if number else b"", msgspec.json.encode(key)))
                    self._write_table(file, self._tables[group, key])
                file.write(b"}")
            file.write(b"}\n")
        os.replace(beside, target)

    def close(self) -> None:
        """Drop the spool."""
        self._spool.close()

    def _put(self, group: str, key: str, record: LoopWindow | ReplicaWindow | EdgeWindow) -> None:
        table = self._tables.get((group, key))
        if table is None:
            table = self._tables[group, key] = _Table(record.__struct_fields__, self._num_blocks)
        if len(table.rows) < self._num_rows:
            table.pad(self._num_rows)
        table.rows.append(msgspec.structs.astuple(record))

    def _spill(self) -> None:
        """Move the block to the spool, column by column."""
        for table in self._tables.values():
            if table.rows:
                table.pad(self._num_rows)
            columns = zip(*table.rows, strict=True) if table.rows else ((),) * len(table.names)
            for index, column in enumerate(columns):
                most = max(column, default=0)
                table.totals[index] += sum(column)
                table.maxima[index] = max(table.maxima[index], most)
                text = msgspec.json.encode(column)[1:-1] if most else b""
                table.offsets.append(self._spool.tell())
                table.sizes.append(len(text))
                self._spool.write(text)
            table.rows.clear()

    def _write_table(self, file: IO[bytes], table: _Table) -> None:
        file.write(b"{")
        for index, name in enumerate(table.names):
            file.write(b'%s"%s":[' % (b"," if index else b"", name.encode()))
            for number, (block, num_rows) in enumerate(self._blocks()):
                text = self._read(table, block, index) or b",".join([b"0"] * num_rows)
                file.write(b"," + text if number else text)
            file.write(b"]")
        file.write(b"}")

    def _blocks(self) -> Iterable[tuple[int, int]]:
        """Number and rows of every block, the last, unfinished one included."""
        yield from ((block, BLOCK_WINDOWS) for block in range(self._num_blocks))
        if self._num_rows:
            yield self._num_blocks, self._num_rows

    def _read(self, table: _Table, block: int, index: int) -> bytes:
        """A column's part of one block; empty if it is all zeros."""
        entry = (block - table.first_block) * len(table.names) + index
        if entry < 0 or not table.sizes[entry]:
            return b""
        self._spool.seek(table.offsets[entry])
        return self._spool.read(table.sizes[entry])


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
