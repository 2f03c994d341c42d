"""The server that a chaos run plays with: started, hit, looked at from outside, and gone without a trace.

In: a pipeline, settings, a private runtime directory. Out: its address, its processes, its gauges.
Does not know: requests, plans, what is right.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import IO

from antiphon import env
from antiphon.bench.chaos.census import Process, processes_of
from antiphon.bench.processes import SERVED
from antiphon.errors import ConfigError, StageError
from antiphon.ids import stage_of

_SAMPLE = re.compile(r"^antiphon_(\w+?)(?:\{(.*)\})? (\S+)$")
_START_TIMEOUT_S = 60.0
_HTTP_TIMEOUT_S = 5.0
LAUNCHER, CLEANER, API_SERVER, JOIN = "launcher", "cleaner", "api-server", "join"
_HELD = (
    "requests_open",
    "requests_inflight",
    "requests_queued",
    "requests_bound",
    "requests_running",
    "requests_waiting",
    "replica_inflight",
    "leases",
    "arena_used_bytes",
    "client_backlog_bytes",
)
"""The gauges that are 0 when nothing is open."""


class ChaosServer:
    """Owns one `antiphon serve` in a session of its own, and the replicas that join it."""

    def __init__(self, pipeline: str, settings: tuple[str, ...], runtime_dir: Path, log: IO[bytes]) -> None:
        self._command = ["serve", pipeline, "--port", "0"]
        self._command += [part for setting in settings for part in ("--set", setting)]
        self._runtime_dir = runtime_dir
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._sessions: list[int] = []
        self.host, self.port = "", 0

    async def start(self) -> None:
        """Return when it serves; ConfigError if it does not."""
        self._process = await self.spawn(*self._command)
        assert self._process.stdout is not None
        async with asyncio.timeout(_START_TIMEOUT_S):
            line = (await self._process.stdout.readline()).decode()
        served = SERVED.search(line)
        if served is None:
            raise ConfigError([f"the server did not start (exit code {await self._process.wait()}); see its log"])
        self.host, self.port = served.group(1), int(served.group(2))

    async def spawn(self, *arguments: str) -> asyncio.subprocess.Process:
        """`antiphon ARGUMENTS` in a session of its own, which is one of this server's from now on."""
        environment = {"ANTIPHON_LOG_LEVEL": "INFO", **env.without_secrets(), "PYTHONUNBUFFERED": "1"}
        environment["ANTIPHON_RUNTIME_DIR"] = str(self._runtime_dir)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "antiphon", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,
        )
        self._sessions.append(process.pid)
        return process

    def processes(self) -> list[Process]:
        """Every living process of this server."""
        return processes_of(self._sessions)

    def named(self, kind: str) -> list[Process]:
        """Those of one kind that have taken their name, in order of their names: `launcher`, or as in Hit."""
        living = sorted((p for p in self.processes() if p.name), key=lambda process: process.name)
        return [process for process in living if kind_of(process) == kind]

    @property
    def pid(self) -> int:
        """The launcher's."""
        assert self._process is not None
        return self._process.pid

    @property
    def run_directory(self) -> Path:
        """Where its sockets and bootstrap files are; a start removes the directories of dead servers."""
        directories = [path for path in self._runtime_dir.iterdir() if path.is_dir()]
        if len(directories) != 1:
            raise StageError(f"there are {len(directories)} run directories, of which one is of a server that lives")
        return directories[0]

    async def gauges(self) -> dict[str, float]:
        """`name{labels}` -> value of every gauge of what is held that is not 0, at every api-server."""
        wanted = {process.name for process in self.named(API_SERVER)}
        held: dict[str, float] = {}
        while wanted:
            samples = await self._scrape()
            held.update({name: value for name, value in samples.items() if value and name.partition("{")[0] in _HELD})
            own = {name for name in wanted if f'http_requests_open{{process="{name}"}}' in samples}
            if not own:
                await asyncio.sleep(0.02)
            wanted -= own
        return held

    async def is_ready(self) -> bool:
        """True if every stage has a live replica."""
        return (await self._get("/ready"))[0] == 200

    def missing(self, expected: Counter[str]) -> Counter[str]:
        """How many processes of which kind are fewer than expected."""
        return expected - Counter(kind_of(process) for process in self.processes() if process.name)

    def signal(self, process: Process, number: signal.Signals) -> None:
        """Send a signal to one process of it, if it lives."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)

    def sockets_of_the_gone(self, others: set[str]) -> list[str]:
        """Socket files of earlier starts, and of processes that do not live; `others` live outside the server."""
        living = {process.name for process in self.processes()} | others
        starts: dict[str, set[str]] = {}
        for path in self.run_directory.glob("*.*.*.*.sock"):  # talker.0.3.control.sock: its start number 3
            stage, index, start, *_ = path.name.split(".")
            starts.setdefault(f"{stage}/{index}", set()).add(start)
        gone = {name: found for name, found in starts.items() if name not in living or len(found) > 1}
        return [f"{name}, start {', '.join(sorted(found))}" for name, found in gone.items()]

    def files_left(self) -> list[Path]:
        """What lies in the runtime directory."""
        return list(self._runtime_dir.rglob("*"))

    async def wait(self, timeout_s: float) -> int | None:
        """The exit code of `antiphon serve`; None if it does not end in time."""
        assert self._process is not None
        try:
            async with asyncio.timeout(timeout_s):
                return await self._process.wait()
        except TimeoutError:
            return None

    async def _scrape(self) -> dict[str, float]:
        _, text = await self._get("/metrics")
        found = [_SAMPLE.match(line) for line in text.splitlines()]
        return {f"{m[1]}{{{m[2]}}}" if m[2] else m[1]: float(m[3]) for m in found if m}

    async def _get(self, path: str) -> tuple[int, str]:
        async with asyncio.timeout(_HTTP_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(self.host, self.port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {self.host}\r\nConnection: close\r\n\r\n".encode())
                head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
            finally:
                writer.close()
        return int(head.split()[1]), body.decode()


def kind_of(process: Process) -> str:
    """A stage's name, or one of LAUNCHER, CLEANER, ORCHESTRATOR, API_SERVER, JOIN."""
    command, _, subject = process.name.partition(" ")
    if subject:
        return LAUNCHER if command == "serve" else command
    return stage_of(process.name) or process.name
