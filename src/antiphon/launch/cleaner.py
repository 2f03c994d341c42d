"""Removes the run directory when the launcher has ended in any way, `kill -9` among them.

In: the run directory's path. Out: a tiny shell that waits for the launcher's end. Does not know: what is in it.
"""

import logging
import os
import subprocess
from pathlib import Path

log = logging.getLogger(__name__)
_TITLE = "antiphon: cleaner"
_SHELL = "/bin/sh"
_WAIT_S = 5.0
_SCRIPT = """\
trap '' HUP INT TERM; read -r _; for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf -- "$RUN_DIRECTORY" && exit; sleep 0.2; done
"""
"""Read from standard input, which ends when the launcher does, and so does `read`. More than one try: a child that is
just dying may still put a file into the directory."""


class Cleaner:
    """Owns the shell, in a session of its own so that no signal to the launcher's group reaches it, and its pipe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the shell. Without one on this machine, the next start of a server sweeps (RunDirectory.create)."""
        try:
            self._process = subprocess.Popen(
                [_TITLE],
                executable=_SHELL,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={"RUN_DIRECTORY": str(self._path), "PATH": os.environ.get("PATH", os.defpath)},
                start_new_session=True,
                bufsize=0,  # `close` has nothing to say any more, and so cannot fail
            )
            assert self._process.stdin is not None
            self._process.stdin.write(_SCRIPT.encode())
        except OSError as error:
            log.warning("no cleaner: %s: %s; files stay in %s if this is killed", _SHELL, error.strerror, self._path)

    def stop(self) -> None:
        """Let it do its work and end."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
