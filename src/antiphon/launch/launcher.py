"""The launcher: starts every process of a deployment in parallel, watches them, restarts replicas, ends them all.

In: a Deployment. Out: a running server and the addresses an engine client needs. Does not know: requests.
"""

import logging
import os
import signal
import time
from pathlib import Path

import msgspec

from antiphon import env
from antiphon.config.resolve import Deployment
from antiphon.errors import ConfigError
from antiphon.ids import ORCHESTRATOR, replica_id
from antiphon.launch.child import END_S, Child, Module, bootstrap_of, wait_any
from antiphon.launch.cleaner import Cleaner
from antiphon.launch.pid_file import LivingProcess, find_process, living_names
from antiphon.launch.restarts import Restarts
from antiphon.messages.bootstrap import Bootstrap
from antiphon.monitor.chrome_trace import write_chrome_trace
from antiphon.transport.address import RunDirectory

log = logging.getLogger(__name__)
_POLL_S = 0.2
_END_POLL_S = 0.05


class Launcher:
    """Owns the run directory and all child processes; when `stop` returns, neither exists any more.

    api_key_digests: SHA-256 of the keys that the api-servers ask for; none = everybody may ask.
    trace: where `stop` writes what every process has noted of single requests; None = nothing is noted.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        stages: tuple[str, ...] = (),
        listen_fd: int = -1,
        api_key_digests: tuple[str, ...] = (),
        trace: Path | None = None,
    ) -> None:
        self._deployment = deployment
        self._stages = stages or tuple(stage.name for stage in deployment.pipeline.stages)
        self._listen_fd = listen_fd
        self._api_key_digests = api_key_digests
        self._trace = trace
        self._children: list[Child] = []
        self._restarts = Restarts(deployment.config.restarts)
        self._directory: RunDirectory | None = None
        self._cleaner: Cleaner | None = None
        self._server: Bootstrap | None = None
        self._hurried = False

    @property
    def directory(self) -> Path:
        """Where the sockets are; exists from `start` to `stop`."""
        return Path(self._bootstrap.run_directory)

    def start(self) -> None:
        """Start every process; does not wait for them. Call it from a thread that lives as long as the server."""
        if self._trace is not None:
            _check_writable(self._trace)
        self._directory = RunDirectory.create(env.runtime_dir())
        self._cleaner = Cleaner(self._directory.path)
        self._cleaner.start()
        self._server = Bootstrap(
            name="launcher",
            pipeline=self._deployment.reference,
            config=self._deployment.config,
            run_directory=str(self._directory.path),
            orchestrator_address=self._directory.address(ORCHESTRATOR),
            unhurried_address=self._directory.address(f"{ORCHESTRATOR}.unhurried"),
            control_address="",
            working_directory=os.getcwd(),
            is_traced=self._trace is not None,
        )
        self._children = self._make_children()
        for child in self._children:
            self._start(child)

    def wait_ready(self) -> None:
        """Return when every process serves; ConfigError as poll_ready."""
        while not self.poll_ready(_POLL_S):
            pass

    def poll_ready(self, timeout_s: float) -> bool:
        """True when every process serves. Waits up to `timeout_s` for news.

        ConfigError with the first real error, or naming what is not ready after timeouts.startup_s, when every
        process has been ended.
        """
        problems = [(child, child.read_status()) for child in wait_any(self._children, timeout_s)]
        for child, problem in problems:
            if problem:
                self._give_up(f"{child.name} could not start: {problem}")
        waiting = ", ".join(child.name for child in self._children if not child.is_ready)
        if waiting and any(self._is_late(child) for child in self._children):
            self._give_up(f"not ready in time: {waiting}; raise timeouts.startup_s or see the log above")
        return not waiting

    def watch(self) -> str:
        """Look after the processes once; gives why the server cannot go on, or ""."""
        now_s = time.monotonic()
        for child in list(self._children):
            if self._restarts.is_waiting(child.name):
                if self._restarts.is_due(child.name, now_s) and (problem := self._restart(child)):
                    return problem
            elif problem := self._watch_one(child):
                return problem
        return ""

    def stop(self) -> None:
        """End every process, then remove the run directory. Safe to call twice.

        The api-servers go first: they take no new request and have timeouts.drain_s for the open ones (see `hurry`).
        Then the replicas, those that have joined from outside too. The orchestrator goes last: replicas ask it before
        they leave. Every process gets SIGTERM, and SIGKILL 5 s after its time is up.
        """
        self._end(self._running(Module.API_SERVER), self._deployment.config.timeouts.drain_s + END_S)
        joined = self._joined_replicas()
        for process in joined:
            process.signal(signal.SIGTERM)
        self._end(self._running(Module.STAGE), END_S)
        self._end_joined(joined)
        for child in self._running(Module.ORCHESTRATOR):
            child.signal(signal.SIGTERM)
            child.wait(END_S + self._monitor_write_s())
            self._kill(child)
        self._children = []
        if self._directory is not None:
            self._write_trace(self._directory)
            self._directory.remove()
            self._directory = None
        if self._cleaner is not None:
            self._cleaner.stop()
            self._cleaner = None

    def hurry(self) -> None:
        """Wait for no request: kill api-servers and replicas. Safe to call from a signal handler while `stop` runs."""
        self._hurried = True

    def client_bootstrap(self, name: str) -> Bootstrap:
        """What an engine client in this process needs to join the running server as `name`."""
        return bootstrap_of(self._bootstrap, name)

    @property
    def _bootstrap(self) -> Bootstrap:
        if self._server is None:
            raise RuntimeError("the launcher has not been started")
        return self._server

    def _start(self, child: Child) -> None:
        self._restarts.started(child.name, time.monotonic())
        if child.module is Module.API_SERVER:
            child.start(
                msgspec.structs.replace(self._bootstrap, api_key_digests=self._api_key_digests), self._listen_fd
            )
        else:
            child.start(self._bootstrap)

    def _restart(self, child: Child) -> str:
        try:
            self._start(child)
        except ConfigError as error:  # a full disk, say: it may be better later
            return self._plan_restart(child, error.message)
        return ""

    def _plan_restart(self, child: Child, reason: str) -> str:
        now_s = time.monotonic()
        problem = self._restarts.died(child.name, reason, now_s)
        if not problem:
            log.error("%s died (%s); %s", child.name, reason, self._restarts.describe(child.name, now_s))
        return problem

    def _is_late(self, child: Child) -> bool:
        return not child.is_ready and time.monotonic() - child.started_s > self._deployment.config.timeouts.startup_s

    def _give_up(self, problem: str) -> None:
        self.hurry()
        self.stop()
        raise ConfigError([problem])

    def _watch_one(self, child: Child) -> str:
        if child.status_fd >= 0 and wait_any([child], 0) and not child.read_status():
            log.info("%s is ready again", child.name)
        reason = child.death()
        if not reason:
            if self._is_late(child):
                child.kill(f"it was not ready in timeouts.startup_s = {self._deployment.config.timeouts.startup_s:g} s")
            return ""
        if child.module is Module.ORCHESTRATOR:
            return f"the orchestrator died: {reason}"
        if child.module is Module.STAGE and ((child.is_ready and reason == "exit code 0") or reason == "SIGTERM"):
            log.info("%s has left: it was told to (%s); it is not started again", child.name, reason)
            self._children.remove(child)
            return ""
        return self._plan_restart(child, reason)

    def _running(self, module: Module) -> list[Child]:
        return [child for child in self._children if child.module is module]

    def _monitor_write_s(self) -> float:
        """How long the orchestrator's monitor may write its file at the end."""
        monitor = self._deployment.config.monitor
        return monitor.write_s if monitor.enabled and not self._hurried else 0.0

    def _end(self, children: list[Child], timeout_s: float) -> None:
        for child in children:
            child.signal(signal.SIGTERM)
        deadline_s = time.monotonic() + timeout_s
        while not self._hurried and time.monotonic() < deadline_s and not all(child.wait(0.0) for child in children):
            time.sleep(_END_POLL_S)
        if self._hurried:
            for child in children:
                child.signal(signal.SIGKILL)
        for child in children:
            self._kill(child)

    def _kill(self, child: Child) -> None:
        if not child.wait(0.0):
            if not self._hurried:
                log.warning("%s did not end in time; killing it", child.name)
            child.signal(signal.SIGKILL)
            child.wait(END_S)
        child.close()

    def _write_trace(self, directory: RunDirectory) -> None:
        if self._trace is None:
            return
        try:
            num_spans = write_chrome_trace(directory, self._trace)
            log.info("%d spans of requests are in %s; open it in https://ui.perfetto.dev", num_spans, self._trace)
        except OSError as error:
            log.error("the trace could not be written: %s: %s", self._trace, error.strerror)

    def _joined_replicas(self) -> list[LivingProcess]:
        """The replicas that `antiphon join` has added: their launcher is another process."""
        if self._directory is None:
            return []
        own = {child.name for child in self._children} | {ORCHESTRATOR}
        names = [name for name in living_names(self._directory) if name not in own]
        return [process for name in names if (process := find_process(self._directory, name)) is not None]

    def _end_joined(self, joined: list[LivingProcess]) -> None:
        """Give them time to leave; what does not is ended by its own launcher, when it sees the orchestrator end."""
        deadline_s = time.monotonic() + END_S
        for process in joined:
            while not process.wait(_END_POLL_S) and time.monotonic() < deadline_s and not self._hurried:
                pass
            process.close()

    def _make_children(self) -> list[Child]:
        config = self._deployment.config
        children = [Child(Module.ORCHESTRATOR, ORCHESTRATOR)]
        for stage in self._stages:
            for index in range(config.stages[stage].replicas):
                children.append(Child(Module.STAGE, replica_id(stage, index), config.stages[stage].python))
        if self._listen_fd >= 0:
            children += [Child(Module.API_SERVER, f"api-server/{index}") for index in range(config.server.api_servers)]
        return children


def _check_writable(path: Path) -> None:
    try:
        path.open("ab").close()
    except OSError as error:
        raise ConfigError([f"cannot write the trace to {path}: {error.strerror}; choose another --trace"]) from error
