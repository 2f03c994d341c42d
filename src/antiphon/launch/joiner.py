"""Membership from outside a running server: one more replica of a stage, or one less.

In: the run directory of a server. Out: a replica that is part of it, as long as this process and the server live.
Does not know: requests; the replica and the orchestrator settle those between them.
"""

import math
import os
import signal
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec

from antiphon.config.resolve import Deployment, Setting, change
from antiphon.errors import AntiphonError, ConfigError, ReplicaDiedError
from antiphon.ids import ORCHESTRATOR, replica_id, stage_of
from antiphon.launch.child import END_S, Child, Module, wait_any
from antiphon.launch.pid_file import LivingProcess, find_process, living_names
from antiphon.messages.bootstrap import Bootstrap
from antiphon.models.registry import load_pipeline
from antiphon.transport.address import RunDirectory

_MAX_INDEX = 10_000


@dataclass(frozen=True)
class RunningServer:
    """A server that another process has started. Owns a handle on its orchestrator, without which it is no server."""

    directory: RunDirectory
    bootstrap: Bootstrap
    orchestrator: LivingProcess

    @classmethod
    def find(cls, address: str) -> "RunningServer":
        """The server whose run directory is at `address`; ConfigError if there is none."""
        directory = RunDirectory(Path(address).resolve())
        try:
            bootstrap = Bootstrap.read(str(directory.file(ORCHESTRATOR, "json")))
        except (OSError, msgspec.DecodeError) as error:
            problem = "is not the run directory of a server" if directory.path.exists() else "does not exist (any more)"
            raise ConfigError([f"{address} {problem}; `antiphon serve` logs its own when it serves"]) from error
        orchestrator = find_process(directory, ORCHESTRATOR)
        if orchestrator is None:
            raise ConfigError([f"the server of {address} has ended"])
        return cls(directory, bootstrap, orchestrator)

    def deployment(self) -> Deployment:
        """What it serves. Relative paths start where the server was started, so this process goes there."""
        os.chdir(self.bootstrap.working_directory)
        pipeline = load_pipeline(self.bootstrap.pipeline)
        return Deployment(self.bootstrap.pipeline, pipeline, self.bootstrap.config, ())

    @property
    def has_ended(self) -> bool:
        """True when its orchestrator has ended."""
        return self.orchestrator.wait(0.0)

    def replicas(self) -> list[str]:
        """The names of all replicas that run now."""
        stages = self.bootstrap.config.stages
        return [name for name in living_names(self.directory) if stage_of(name) in stages]

    def close(self) -> None:
        """Let go of the server."""
        self.orchestrator.close()


class Joiner:
    """Owns one replica of a server that it has not started; when `stop` returns, the replica has ended."""

    def __init__(self, server: RunningServer, stage: str, settings: tuple[Setting, ...] = ()) -> None:
        """ConfigError if the server has no such stage, or for a setting that is not one of this stage's."""
        stages = server.bootstrap.config.stages
        if stage not in stages:
            raise ConfigError([f"this server has no stage {stage!r}; it has {', '.join(stages)}"])
        group = f"stages.{stage}."
        wrong = [each.path for each in settings if not each.path.startswith(group) or each.path == f"{group}replicas"]
        if wrong:
            raise ConfigError([f"{path} is the server's; a replica that joins can set {group}KEY" for path in wrong])
        self._stage = stage
        self._server = server
        self._config = change(server.deployment(), settings).config
        self._child: Child | None = None
        self._drained_by_s = math.inf

    @property
    def name(self) -> str:
        """What the replica is called; from `start` on."""
        return self._running.name

    def start(self) -> None:
        """Take the next name that was never used, and start the replica. Call it from a thread that stays."""
        child = Child(Module.STAGE, self._take_name(), self._config.stages[self._stage].python)
        self._child = child
        child.start(msgspec.structs.replace(self._server.bootstrap, config=self._config))

    def poll_ready(self, timeout_s: float) -> bool:
        """True when requests may be bound to the replica. Waits up to `timeout_s`; ConfigError if it cannot start."""
        child, startup_s = self._running, self._config.timeouts.startup_s
        if wait_any([child], timeout_s) and (problem := child.read_status()):
            raise ConfigError([f"{child.name} could not start: {problem}"])
        if not child.is_ready and self._server.has_ended:
            raise ConfigError([f"{child.name} could not join: the server has ended"])
        if not child.is_ready and time.monotonic() - child.started_s > startup_s:
            raise ConfigError([f"{child.name} is not ready after timeouts.startup_s = {startup_s:g} s; see its log"])
        return child.is_ready

    def watch(self, timeout_s: float) -> bool:
        """True when the replica has left, because it was told to. ReplicaDiedError if it ends otherwise."""
        child = self._running
        child.wait(timeout_s)
        server_has_ended, death = self._server.has_ended, child.death()
        if death in ("exit code 0", "SIGTERM"):
            return True
        if death:
            raise ReplicaDiedError(f"{child.name} died: {death}")
        if server_has_ended:
            raise ReplicaDiedError(f"the server has ended, and {child.name} with it")
        if time.monotonic() > self._drained_by_s:
            raise ReplicaDiedError(f"{child.name} did not leave in timeouts.drain_s, and was killed; see its log")
        return False

    def drain(self) -> None:
        """Ask the replica to leave when its requests are over, `watch` says when; the second time: at once."""
        self._running.signal(signal.SIGTERM)
        self._drained_by_s = min(self._drained_by_s, time.monotonic() + self._config.timeouts.drain_s + END_S)

    def stop(self) -> None:
        """End the replica, if it lives. Safe to call twice, and before `start`."""
        if self._child is not None:
            self._child.signal(signal.SIGKILL)
            self._child.wait(END_S)
            self._child.close()
            self._server.directory.remove_sockets(self._child.name)  # the orchestrator knows only who has joined

    @property
    def _running(self) -> Child:
        if self._child is None:
            raise RuntimeError("the joiner has not been started")
        return self._child

    def _take_name(self) -> str:
        """The next name of the stage. Its bootstrap file makes it taken, and stays: no two replicas have one name."""
        for index in range(_MAX_INDEX):
            name = replica_id(self._stage, index)
            try:
                self._server.directory.file(name, "json").touch(0o600, exist_ok=False)
                return name
            except FileExistsError:
                continue
            except OSError as error:
                raise ConfigError([f"cannot join {self._server.directory.path}: {error.strerror}"]) from error
        raise ConfigError([f"{_MAX_INDEX} replicas of {self._stage} have been started; restart the server"])


def drain(server: RunningServer, name: str) -> None:
    """Take the replica called `name` out: returns when its requests are over and its process has ended.

    ConfigError if there is none; AntiphonError if it has not ended in the time that timeouts.drain_s gives it.
    """
    process = find_process(server.directory, name) if name in server.replicas() else None
    if process is None:
        there = ", ".join(server.replicas()) or "none"
        raise ConfigError([f"there is no replica {name!r}; there is {there}"])
    timeout_s = server.bootstrap.config.timeouts.drain_s + END_S
    with closing(process):
        process.signal(signal.SIGTERM)
        has_ended = process.wait(timeout_s)
    if not has_ended:
        raise AntiphonError(f"{name} (pid {process.pid}) has not ended after {timeout_s:g} s; see its log, or kill it")
