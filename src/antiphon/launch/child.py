"""The launcher's handle on one child process: start it, hear whether it is ready, end it.

In: a module to run and a Bootstrap. Out: a process and its status. Does not know: what other children do.
"""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from antiphon.errors import ConfigError
from antiphon.messages.bootstrap import Bootstrap


class Child:
    """Owns one child process and the reading end of its status pipe."""

    def __init__(self, module: str, bootstrap: Bootstrap, python: str = "") -> None:
        self.name = bootstrap.name
        self.module = module
        self.bootstrap = bootstrap
        self.python = python or sys.executable
        self.is_ready = False
        self._process: subprocess.Popen[bytes] | None = None
        self._status_fd = -1

    def start(self, run_directory: Path) -> None:
        """Start the process; ConfigError if its interpreter cannot be run.

        It dies with the thread that calls this, so call it from a thread that stays.
        """
        path = run_directory / f"{self.name.replace('/', '.')}.json"
        self.bootstrap.write(path)
        read_fd, write_fd = os.pipe()
        listen_fd = self.bootstrap.listen_fd
        command = [self.python, "-m", self.module, "--bootstrap", str(path)]
        command += ["--status-fd", str(write_fd), "--parent", str(os.getpid())]
        inherited = [write_fd] if listen_fd < 0 else [write_fd, listen_fd]
        environment = dict(os.environ)
        if self.python == sys.executable:  # what this process can import; another interpreter has packages of its own
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        self._status_fd = read_fd
        try:
            self._process = subprocess.Popen(command, pass_fds=inherited, stdin=subprocess.DEVNULL, env=environment)
        except OSError as error:
            raise ConfigError([f"{self.name} could not start: {self.python}: {error.strerror}"]) from error
        finally:
            os.close(write_fd)
        self.is_ready = False

    @property
    def pid(self) -> int:
        """The process id; 0 before `start`."""
        return self._process.pid if self._process is not None else 0

    @property
    def status_fd(self) -> int:
        """Readable when `read_status` has something to read; -1 once it has been read."""
        return self._status_fd

    def read_status(self) -> str:
        """Take in the child's status line; gives why it could not start, or "" if it is ready."""
        with os.fdopen(self._status_fd, "rb") as pipe:
            line = pipe.readline()
        self._status_fd = -1
        status = json.loads(line) if line else {"error": "it ended before it was ready; see its log"}
        self.is_ready = "ready" in status
        return "" if self.is_ready else str(status["error"])

    def death(self) -> str:
        """How the process ended ("exit code 1", "SIGKILL"), or "" while it lives."""
        code = self._process.poll() if self._process is not None else None
        if code is None:
            return ""
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process lives."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def wait(self, timeout_s: float) -> bool:
        """True if the process has ended within `timeout_s`."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Close the status pipe."""
        if self._status_fd >= 0:
            os.close(self._status_fd)
            self._status_fd = -1


def wait_any(children: list[Child], timeout_s: float) -> list[Child]:
    """The children whose status can be read now, waiting up to `timeout_s` for the first."""
    by_fd = {child.status_fd: child for child in children if child.status_fd >= 0}
    readable, _, _ = select.select(list(by_fd), [], [], timeout_s)
    return [by_fd[fd] for fd in readable]
