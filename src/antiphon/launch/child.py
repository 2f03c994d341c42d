"""The launcher's handle on one child process: start it, hear whether it is ready, end it.

In: a module to run and the Bootstrap of its server. Out: a process and its status. Does not know: other children.
"""

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path

import msgspec

from antiphon import env
from antiphon.ending import ending_of
from antiphon.errors import ConfigError
from antiphon.ids import ORCHESTRATOR
from antiphon.launch.pid_file import write_pid_file
from antiphon.messages.bootstrap import Bootstrap
from antiphon.transport.address import RunDirectory

_NO_STATUS = "it ended before it was ready; see its log"
END_S = 5.0
"""How long a process may take to end when its time is up; then it is killed."""


class Module(StrEnum):
    """What a process of a server runs."""

    ORCHESTRATOR = "antiphon.orchestrator"
    STAGE = "antiphon.stage"
    API_SERVER = "antiphon.server"


class Child:
    """Owns one process of a server, and each process that takes its place, with the reading end of its status pipe.

    Every start has socket addresses of its own: what waits for a dead process never reaches the next one.
    """

    def __init__(self, module: Module, name: str, python: str = "") -> None:
        self.name = name
        self.module = module
        self.python = python or sys.executable
        self.is_ready = False
        self.started_s = 0.0
        self._num_starts = 0
        self._problem = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._status_fd = -1

    def start(self, server: Bootstrap, listen_fd: int = -1) -> None:
        """Start the process as part of the server; ConfigError if its interpreter cannot be run or a file not written.

        It dies with the thread that calls this, so call it from a thread that stays.
        """
        self.close()
        try:
            self._start(server, listen_fd)
        except OSError as error:
            self.signal(signal.SIGKILL)
            self.wait(END_S)
            advice = f"see to {server.run_directory}, or set ANTIPHON_RUNTIME_DIR to another place"
            raise ConfigError([f"{self.name} could not start: {error}; {advice}"]) from error

    def _start(self, server: Bootstrap, listen_fd: int) -> None:
        directory = RunDirectory(Path(server.run_directory))
        directory.remove_sockets(self.name)
        bootstrap = bootstrap_of(server, self.name, self._num_starts, listen_fd)
        path = directory.file(self.name, "json")
        bootstrap.write(path)
        read_fd, write_fd = os.pipe()
        command = [self.python, "-m", self.module, "--bootstrap", str(path)]
        command += ["--status-fd", str(write_fd), "--parent", str(os.getpid())]
        inherited = [write_fd] if listen_fd < 0 else [write_fd, listen_fd]
        environment = env.without_secrets()
        if self.python == sys.executable:  # what this process can import; another interpreter has packages of its own
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        self._status_fd, self.is_ready, self._problem = read_fd, False, ""
        self._num_starts += 1
        self.started_s = time.monotonic()
        try:
            with _interrupts_kept_from_children():
                self._process = subprocess.Popen(
                    command, pass_fds=inherited, stdin=subprocess.DEVNULL, env=environment, cwd=server.working_directory
                )
        except OSError as error:
            raise ConfigError([f"{self.name} could not start: {self.python}: {error.strerror}"]) from error
        finally:
            os.close(write_fd)
        _raise_open_files(self._process.pid)
        write_pid_file(directory, self.name, self._process.pid)

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
        status = json.loads(line) if line else {"error": _NO_STATUS}
        self.is_ready = "ready" in status
        if self.is_ready:
            return ""
        self._problem = self._problem or str(status["error"])
        if not line and self.wait(END_S):
            return f"{self._problem} ({self.ending()})"
        return self._problem

    def ending(self) -> str:
        """How the process ended ("exit code 1", "SIGKILL"), or "" while it lives."""
        code = self._process.poll() if self._process is not None else None
        return "" if code is None else ending_of(code)

    def death(self) -> str:
        """As `ending`, with the problem that the process named before it was ready, if it did."""
        ending = self.ending()
        return f"{ending}: {self._problem}" if ending and self._problem else ending

    def kill(self, problem: str) -> None:
        """End a process that is not ready, because of `problem`."""
        self._problem = problem
        self.signal(signal.SIGKILL)

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


@contextmanager
def _interrupts_kept_from_children() -> Iterator[None]:
    """A child starts with SIGINT blocked, until it ignores it: Ctrl-C reaches the whole group, while it imports too."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _raise_open_files(pid: int) -> None:
    """To the hard limit: a connection of a client is a descriptor, and 1,024 are the usual soft limit."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ProcessLookupError):  # it has ended; who watches it says why
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))


def bootstrap_of(server: Bootstrap, name: str, start: int = 0, listen_fd: int = -1) -> Bootstrap:
    """The bootstrap of the process called `name` at its start number `start`, from any other of the same server."""
    directory = RunDirectory(Path(server.run_directory))
    if name == ORCHESTRATOR:  # the one that everybody speaks to; it is never started twice
        return msgspec.structs.replace(server, name=name, control_address=server.orchestrator_address)
    return msgspec.structs.replace(
        server,
        name=name,
        control_address=directory.address(f"{name}.{start}.control"),
        connector_address=directory.address(f"{name}.{start}.chunks"),
        client_address=directory.address(f"{name}.{start}.client"),
        listen_fd=listen_fd,
    )


def wait_any(children: list[Child], timeout_s: float) -> list[Child]:
    """The children whose status can be read now, waiting up to `timeout_s` for the first."""
    by_fd = {child.status_fd: child for child in children if child.status_fd >= 0}
    poller = select.poll()  # select() takes no descriptor from 1,024 on
    for fd in by_fd:
        poller.register(fd, select.POLLIN)
    return [by_fd[fd] for fd, _ in poller.poll(timeout_s * 1000)]
