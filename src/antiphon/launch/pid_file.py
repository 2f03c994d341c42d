"""Finds a server's processes from outside it: NAME.pid in the run directory says who runs as NAME.

In: a run directory and a process's name. Out: a handle on that very process, never on another with its number.
Does not know: what the process is for, or who started it.
"""

import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path

from antiphon.transport.address import RunDirectory

_ENDING = "pid"
_STATE, _START_TIME = 0, 19  # positions in /proc/PID/stat behind the name
_DEAD = ("Z", "X")


@dataclass(frozen=True)
class LivingProcess:
    """Owns a pidfd, which stays with its process: close it. The process need not be a child of this one."""

    pid: int
    pidfd: int

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process lives."""
        if not self.wait(0.0):
            signal.pidfd_send_signal(self.pidfd, number)

    def wait(self, timeout_s: float) -> bool:
        """True if the process has ended within `timeout_s`."""
        poller = select.poll()  # select() takes no descriptor from 1,024 on
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))

    def close(self) -> None:
        """Let go of the process; it lives on."""
        os.close(self.pidfd)


def write_pid_file(directory: RunDirectory, name: str, pid: int) -> None:
    """Say who runs as `name`: the pid, and when it was started, which tells it from a later process with that pid."""
    path = directory.file(name, _ENDING)
    draft = path.with_suffix(".pid-draft")
    draft.write_text(f"{pid} {_start_time(pid)}\n")
    draft.rename(path)


def find_process(directory: RunDirectory, name: str) -> LivingProcess | None:
    """The process that runs as `name` now; None if there is none."""
    try:
        pid, started = (int(word) for word in directory.file(name, _ENDING).read_text().split())
        pidfd = os.pidfd_open(pid)
    except (OSError, ValueError):
        return None
    if _start_time(pid) == started:
        return LivingProcess(pid, pidfd)
    os.close(pidfd)
    return None


def living_names(directory: RunDirectory) -> list[str]:
    """The names of all processes of the server that run now."""
    found = []
    for name in directory.names(_ENDING):
        process = find_process(directory, name)
        if process is not None:
            found.append(name)
            process.close()
    return found


def _start_time(pid: int) -> int:
    """Clock ticks from the machine's start to the process's; -1 if it does not live."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return -1 if fields[_STATE] in _DEAD else int(fields[_START_TIME])
