"""The processes that a benchmark measures: a server of its own and the in-process references.

In: command lines. Out: a server's address and its processes' CPU seconds; a reference's Samples.
Does not know: HTTP, what is measured, goals.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from antiphon import env
from antiphon.bench.jobs import DECODE_SAMPLE, ENCODE, Job
from antiphon.bench.measures import Sample
from antiphon.errors import ConfigError, StageError

SERVED = re.compile(r" is served at http://([^\s:]+):(\d+)")
"""What `antiphon serve` prints when it serves: host and port."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STOP_TIMEOUT_S = 30.0


class BenchServer:
    """Owns one `antiphon serve PIPELINE` on a free port, and the processes under it."""

    def __init__(self, *settings: str, pipeline: str = "voice", deploy_file: str = "") -> None:
        self._pipeline = pipeline
        self._deploy_file = deploy_file
        self._settings = settings
        self._process: subprocess.Popen[str] | None = None
        self.host, self.port = "", 0

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "antiphon", "serve", self._pipeline, "--port", "0"]
        command += ["--deploy", self._deploy_file] if self._deploy_file else []
        command += [part for setting in self._settings for part in ("--set", setting)]
        environment = {"ANTIPHON_LOG_LEVEL": "WARNING", **env.without_secrets(), "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if served := SERVED.search(line):
                self.host, self.port = served.group(1), int(served.group(2))
                return self
        raise ConfigError([f"the server did not start (exit code {self._process.wait()}); its error is above"])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        end(self._process, _STOP_TIMEOUT_S)

    def pid_of(self, name: str) -> int:
        """The process of that name ("api-server/0", ...); StageError if there is none."""
        assert self._process is not None
        for pid in children_of(self._process.pid):
            if name_of(pid) == name:
                return pid
        raise StageError(f"the server has no process {name}")

    def cpu_s(self) -> dict[str, float]:
        """Process name ("talker/0", ...) -> CPU seconds since it started, in steps of 10 ms."""
        assert self._process is not None
        pids = [self._process.pid, *children_of(self._process.pid)]
        return {name_of(pid): _cpu_s_of(pid) for pid in pids}


class Reference:
    """Owns one process of antiphon.bench.reference."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "antiphon.bench.reference", *self._arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        end(self._process, _STOP_TIMEOUT_S)

    def run(self, job: Job) -> Sample:
        """Have it done; returns when it is."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(ENCODE(job).decode() + "\n")
        self._process.stdin.flush()
        return DECODE_SAMPLE.decode(self._read())

    def _read(self) -> str:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ConfigError([f"the {self._arguments[0]} reference ended (exit code {self._process.wait()})"])
        return line


def end(process: "subprocess.Popen[str] | subprocess.Popen[bytes] | None", timeout_s: float) -> None:
    """SIGTERM, and wait: TimeoutExpired if it does not end."""
    assert process is not None
    process.terminate()
    process.wait(timeout_s)


def children_of(pid: int) -> list[int]:
    """The processes that `pid` has started and that live."""
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def name_of(pid: int) -> str:
    """`orchestrator`, `talker/0`: as the process calls itself in `ps`."""
    title = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()
    return title.removeprefix("antiphon: ").strip()


def _cpu_s_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def exact_cpu_s(pid: int) -> float:
    """CPU seconds of all living threads of a process, to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
