"""The JSON-lines file of the monitor: a header and one line per closed window, each written at once.

In: windows. Out: a file that a killed process leaves complete but for the line it was writing.
Does not know: columns, where windows come from.
"""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from antiphon.errors import ConfigError
from antiphon.monitor.windows import Header, Window

_MAX_SERVERS = 100


def lines_path(target: Path) -> Path:
    """Where the lines of the columnar file `target` are: beside it, `x.json` -> `x.jsonl`."""
    return target.with_suffix(".jsonl") if target.suffix == ".json" else target.with_name(f"{target.name}.jsonl")


class LinesWriter:
    """Owns the open JSON-lines file. A lock on it tells another server that it is in use.

    A file that is there and in use makes both names `x_2.json`, `x_3.json` ...; one that a killed server left is
    kept under another name.
    """

    def __init__(self, target: Path, header: Header) -> None:
        self._wanted = target
        self._header = header
        self._fd = -1
        self._is_torn = False
        self.target = target

    @property
    def path(self) -> Path:
        """The file's path."""
        return lines_path(self.target)

    @property
    def is_open(self) -> bool:
        """True once there is a file."""
        return self._fd >= 0

    def write(self, window: Window) -> None:
        """Append one window, opening the file at the first; OSError as the file system gives it."""
        if self._fd < 0:
            self._open()
        self._append(window)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        for number in range(1, _MAX_SERVERS):
            wanted = self._wanted
            self.target = wanted if number == 1 else wanted.with_name(f"{wanted.stem}_{number}{wanted.suffix}")
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                continue
            if os.fstat(fd).st_size:
                os.close(fd)
                _keep(self.path)
                return self._open()
            self._fd = fd
            return self._append(self._header)
        raise OSError(f"{lines_path(self._wanted)} and {_MAX_SERVERS - 1} more like it are in use")

    def _append(self, record: Window | Header) -> None:
        """One write per line. After one that failed half-way, the next begins with a newline: only one line is lost."""
        line = (b"\n" if self._is_torn else b"") + msgspec.json.encode(record) + b"\n"
        self._is_torn = True
        num_bytes = os.write(self._fd, line)
        if num_bytes < len(line):
            raise OSError(f"{self.path}: only {num_bytes} of {len(line)} bytes could be written")
        self._is_torn = False


def _keep(path: Path) -> None:
    """Rename what an earlier run has left, to the first free name."""
    number = 1
    while (kept := path.with_name(f"{path.stem}.left{number}.jsonl")).exists():
        number += 1
    path.rename(kept)


class LinesReader:
    """Owns nothing; reads a JSON-lines file window by window. `num_torn`: lines that could not be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.num_torn = 0

    def header(self) -> Header:
        """The first line; ConfigError if it is none of this file's kind."""
        if not self._path.is_file():  # a device may have lines without an end
            raise ConfigError([f"{self._path} is no file of the monitor: it is not a plain file"])
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.readline(), type=Header)
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError([f"{self._path} is no file of the monitor: {error}"]) from error

    def windows(self) -> Iterator[Window]:
        """Every window in order; torn lines are skipped and counted."""
        decoder = msgspec.json.Decoder(Window)
        with self._path.open("rb") as file:
            file.readline()
            for line in file:
                if not line.strip():
                    continue
                try:
                    window = decoder.decode(line)
                except msgspec.DecodeError:
                    self.num_torn += 1
                else:
                    yield window
