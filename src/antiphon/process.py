"""What every child process does first: die with its parent, take its name, log, and say when it is ready.

In: a name and the descriptor of a status pipe. Out: a named process; one status line on the pipe.
Does not know: what the process is for.
"""

import ctypes
import json
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from antiphon import env
from antiphon.errors import AntiphonError

_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_EXTRA = re.compile(r"""([\w.-]+).*;.*extra *== *['"](\w+)['"]""")
_DISTRIBUTIONS = {"hibari": "hibari-tts"}  # where a module is not called as its distribution is
_LOG_FORMAT = "%(asctime)s %(levelname)s {name}: %(message)s"


def die_with_parent() -> None:
    """Tie this process's life to that of its parent, `--parent PID` on the command line.

    The first thing in a child: the imports take a while, and a parent that is killed meanwhile must not leave it.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if "--parent" in sys.argv and str(os.getppid()) not in sys.argv[sys.argv.index("--parent") :]:
        sys.exit("the launcher has died")


def keep_freed_memory() -> None:
    """Have glibc's malloc keep up to 256 MiB of what was freed, instead of giving it back to the kernel.

    Rows are made anew in every step; without this, each page of them costs a fault, which is dearer than copying it.
    Arrays of more than 32 MiB, the most that older glibcs let one set, go back as before. Other libcs: nothing changes.
    """
    with suppress(AttributeError):  # no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 256 << 20)


class ChildProcess:
    """Owns this process's end of the status pipe, on which it says exactly one thing: ready, or why not."""

    def __init__(self, name: str, status_fd: int) -> None:
        self.name = name
        self._status_fd = status_fd

    def startup(self) -> None:
        """Name this process in `ps`, and set up logging."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the launcher decides
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        set_title(self.name)
        configure_logging(self.name)

    def ready(self) -> None:
        """Say that the process serves from now on."""
        self._say({"ready": True})

    @contextmanager
    def reporting_failure(self) -> Iterator[None]:
        """Around start-up: an error goes to the launcher as one line; exit code 1.

        Its traceback goes to the log, unless it is an AntiphonError, which says itself what to do.
        """
        try:
            yield
        except Exception as error:  # the edge of the process: whatever stops the start is the launcher's to tell
            if not isinstance(error, AntiphonError):
                traceback.print_exc()
            self._say({"error": _one_line(error)})
            sys.exit(1)

    def _say(self, status: dict[str, bool | str]) -> None:
        os.write(self._status_fd, json.dumps(status).encode() + b"\n")
        os.close(self._status_fd)


def _one_line(error: Exception) -> str:
    """The last line of a traceback, also where the message has several; what to install, where a module is missing."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__
    extra = _extra_with(missing.name) if isinstance(missing, ModuleNotFoundError) and missing.name else ""
    return f"{text}; in antiphon's checkout, run: pip install -e '.[{extra}]'" if extra else text


def _extra_with(module: str) -> str:
    """The extra of this package that brings `module`; "" if none does."""
    from importlib import metadata

    wanted = module.partition(".")[0].replace("_", "-").lower()
    try:
        requirements = metadata.requires("antiphon") or []
    except metadata.PackageNotFoundError:  # run from a source tree that is not installed
        return ""
    for requirement in requirements:
        found = _EXTRA.match(requirement)
        if found and found[1].lower() in (wanted, _DISTRIBUTIONS.get(wanted)):
            return found[2]
    return ""


def set_title(name: str) -> None:
    """Show as `antiphon: <name>` in `ps` and `top`."""
    import setproctitle

    setproctitle.setproctitle(f"antiphon: {name}")


def configure_logging(name: str) -> None:
    """One line per record on stderr, with the process's name."""
    logging.basicConfig(level=env.log_level(), format=_LOG_FORMAT.format(name=name), stream=sys.stderr, force=True)
