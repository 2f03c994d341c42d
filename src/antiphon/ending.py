"""How a process ended, in words: "exit code 3", "SIGKILL".

In: an exit code; or the pidfd of a process that has just ended. Out: words. Does not know: whose process it was.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path

_STATE, _EXIT_CODE = 0, 49
"""Places in /proc/PID/stat behind the command's name."""


def ending_of(code: int) -> str:
    """code: as subprocess gives it; a signal's number is negative."""
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def ending_of_other(pid: int, pidfd: int) -> str:
    """Of a process that need not be a child of this one, if its parent has not asked yet; else that it has ended.

    pidfd: the same process, so that its number is not taken for that of a later one.
    """
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        signal.pidfd_send_signal(pidfd, 0)  # ProcessLookupError if its parent has asked meanwhile
        if fields[_STATE] == "Z":
            return ending_of(os.waitstatus_to_exitcode(int(fields[_EXIT_CODE])))
    return "its process has ended"
