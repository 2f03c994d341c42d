"""The processes of a server as the kernel counts them: who lives, how large they are, what they hold open.

In: session ids, process ids. Out: values read from /proc. Does not know: what the processes are for.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TITLE = "antiphon: "
_STATE, _PARENT, _SESSION, _STARTED = 0, 1, 3, 19  # places in /proc/<pid>/stat behind the name


@dataclass(frozen=True)
class Process:
    """One process, for ever: its id may be given to another, its start time with it may not.

    name: "talker/0", "orchestrator", ..., or "" while it has not taken its name.
    """

    pid: int
    started_ticks: int
    name: str


@dataclass(frozen=True)
class Size:
    """private_bytes: resident memory that is not shared with a file or another process. num_processes: with it."""

    private_bytes: int
    num_open_files: int
    num_processes: int


def processes_of(sessions: Iterable[int]) -> list[Process]:
    """Every living process of the sessions, and the children of their leaders."""
    wanted, found = set(sessions), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            fields = _stat(int(folder.name))
            if fields and fields[_STATE] != "Z" and {int(fields[_SESSION]), int(fields[_PARENT])} & wanted:
                found.append(Process(int(folder.name), int(fields[_STARTED]), _name(folder)))
    return found


def is_alive(process: Process) -> bool:
    """True while it runs, or is stopped by a signal."""
    fields = _stat(process.pid)
    return bool(fields) and fields[_STATE] != "Z" and int(fields[_STARTED]) == process.started_ticks


def size_of(process: Process, num_processes: int) -> Size | None:
    """Its size as one of `num_processes`; None if it has ended."""
    folder = Path(f"/proc/{process.pid}")
    try:
        _, resident, shared, *_ = (folder / "statm").read_text().split()
        return Size((int(resident) - int(shared)) * _PAGE_BYTES, len(os.listdir(folder / "fd")), num_processes)
    except (FileNotFoundError, ProcessLookupError):
        return None


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _name(folder: Path) -> str:
    try:
        title = (folder / "cmdline").read_bytes().rstrip(b"\0 ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return title.removeprefix(_TITLE) if title.startswith(_TITLE) else ""


def shared_files_of(process: Process) -> set[str]:
    """The files in /dev/shm that it has open."""
    found = set()
    try:
        for entry in Path(f"/proc/{process.pid}/fd").iterdir():
            target = os.readlink(entry)
            if target.startswith("/dev/shm/"):
                found.add(target)
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found
