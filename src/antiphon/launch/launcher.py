"""The launcher: starts every process of a deployment in parallel, watches them, restarts replicas, ends them all.

In: a Deployment. Out: a running server and the addresses an engine client needs. Does not know: requests.
"""

import logging
import signal
import time
from dataclasses import dataclass

from antiphon import env
from antiphon.config.resolve import Deployment
from antiphon.errors import ConfigError
from antiphon.ids import replica_id
from antiphon.launch.child import Child, wait_any
from antiphon.messages.bootstrap import Bootstrap
from antiphon.messages.control import ProcessDied
from antiphon.transport.address import RunDirectory
from antiphon.transport.channel import Outlet

log = logging.getLogger(__name__)
_KILL_AFTER_S = 5.0
_POLL_S = 0.2
_DRAIN_POLL_S = 0.05
_ORCHESTRATOR, _STAGE, _API_SERVER = "antiphon.orchestrator", "antiphon.stage", "antiphon.server"
_MAX_RESTARTS = 5
_HEALTHY_S = 300.0
_RESTART_BACKOFF_S = 0.5


@dataclass
class _Restart:
    """count: restarts since the process last lived for _HEALTHY_S; due_s: when the next is due, 0 = none is."""

    count: int = 0
    due_s: float = 0.0
    last_s: float = 0.0


class Launcher:
    """Owns the run directory and all child processes; when `stop` returns, neither exists any more."""

    def __init__(self, deployment: Deployment, *, stages: tuple[str, ...] = (), listen_fd: int = -1) -> None:
        self._deployment = deployment
        self._stages = stages or tuple(stage.name for stage in deployment.pipeline.stages)
        self._listen_fd = listen_fd
        self._children: list[Child] = []
        self._restarts: dict[str, _Restart] = {}
        self._outlet = Outlet()
        self._directory: RunDirectory | None = None
        self._start_deadline_s = 0.0
        self._hurried = False

    @property
    def directory(self) -> RunDirectory:
        """Where the sockets are; exists from `start` to `stop`."""
        if self._directory is None:
            raise RuntimeError("the launcher has not been started")
        return self._directory

    def start(self) -> None:
        """Start every process; does not wait for them. Call it from a thread that lives as long as the server."""
        self._directory = RunDirectory.create(env.runtime_dir())
        self._start_deadline_s = time.monotonic() + self._deployment.config.timeouts.startup_s
        self._children = self._make_children()
        for child in self._children:
            child.start(self.directory.path)

    def wait_ready(self) -> None:
        """Return when every process serves; ConfigError as poll_ready."""
        while not self.poll_ready(_POLL_S):
            pass

    def poll_ready(self, timeout_s: float) -> bool:
        """True when every process serves. Waits up to `timeout_s` for news.

        ConfigError with the first real error, or naming what is not ready after timeouts.startup_s, when every
        process has been ended.
        """
        for child in wait_any(self._children, timeout_s):
            problem = child.read_status()
            if problem:
                self.stop()
                raise ConfigError([f"{child.name} could not start: {problem}"])
        waiting = ", ".join(child.name for child in self._children if not child.is_ready)
        if waiting and time.monotonic() > self._start_deadline_s:
            self.stop()
            raise ConfigError([f"not ready in time: {waiting}; raise timeouts.startup_s or see the log above"])
        return not waiting

    def watch(self) -> str:
        """Look after the processes once; gives why the server cannot go on, or ""."""
        for child in self._children:
            if child.status_fd >= 0 and child in wait_any([child], 0):
                problem = child.read_status()
                log.log(logging.ERROR if problem else logging.INFO, "%s restarted: %s", child.name, problem or "ready")
            reason = child.death()
            if reason and child.name not in self._restarts_due():
                if child.name == "orchestrator":
                    return f"the orchestrator died: {reason}"
                problem = self._plan_restart(child, reason)
                if problem:
                    return problem
        self._restart_due()
        return ""

    def stop(self) -> None:
        """End every process, then remove the run directory. Safe to call twice.

        The api-servers go first: they take no new request and have timeouts.drain_s for the open ones (see `hurry`).
        The orchestrator goes last: replicas ask it before they leave.
        Every process gets SIGTERM, and SIGKILL 5 s after its time is up.
        """
        drain_s = 0.0 if self._hurried else self._deployment.config.timeouts.drain_s
        self._end([child for child in self._children if child.module == _API_SERVER], drain_s)
        self._end([child for child in self._children if child.module == _STAGE], 0.0)
        self._end([child for child in self._children if child.module == _ORCHESTRATOR], 0.0)
        self._children = []
        self._outlet.close()
        if self._directory is not None:
            self._directory.remove()
            self._directory = None

    def hurry(self) -> None:
        """Cut the drain short: open requests are dropped. Safe to call from a signal handler while `stop` runs."""
        self._hurried = True

    def client_bootstrap(self, name: str) -> Bootstrap:
        """What an engine client in this process needs to join the running server as `name`."""
        return self._bootstrap(name)

    def _end(self, children: list[Child], drain_s: float) -> None:
        for child in children:
            child.signal(signal.SIGTERM)
        drained_s = time.monotonic() + drain_s
        while time.monotonic() < drained_s and not self._hurried and not all(child.wait(0.0) for child in children):
            time.sleep(_DRAIN_POLL_S)
        killed_s = time.monotonic() + (0.0 if drain_s and self._hurried else _KILL_AFTER_S)
        for child in children:
            if not child.wait(max(0.0, killed_s - time.monotonic())):
                log.warning("%s did not end in time; killing it", child.name)
                child.signal(signal.SIGKILL)
                child.wait(_KILL_AFTER_S)
            child.close()

    def _restarts_due(self) -> set[str]:
        return {name for name, restart in self._restarts.items() if restart.due_s}

    def _plan_restart(self, child: Child, reason: str) -> str:
        self._outlet.send(self.directory.address("orchestrator"), ProcessDied(child.name, reason))
        restart = self._restarts.setdefault(child.name, _Restart())
        if time.monotonic() - restart.last_s > _HEALTHY_S:
            restart.count = 0
        if restart.count >= _MAX_RESTARTS:
            return f"{child.name} died {restart.count + 1} times (last: {reason}); giving up"
        restart.due_s = time.monotonic() + _RESTART_BACKOFF_S * 2**restart.count
        restart.count += 1
        log.error("%s died (%s); restart %d of %d", child.name, reason, restart.count, _MAX_RESTARTS)
        return ""

    def _restart_due(self) -> None:
        for child in self._children:
            restart = self._restarts.get(child.name)
            if restart is not None and restart.due_s and time.monotonic() >= restart.due_s:
                restart.due_s, restart.last_s = 0.0, time.monotonic()
                child.close()
                child.start(self.directory.path)

    def _make_children(self) -> list[Child]:
        config = self._deployment.config
        children = [Child(_ORCHESTRATOR, self._bootstrap("orchestrator"))]
        for stage in self._stages:
            for index in range(config.stages[stage].replicas):
                bootstrap = self._bootstrap(replica_id(stage, index))
                children.append(Child(_STAGE, bootstrap, config.stages[stage].python))
        if self._listen_fd >= 0:
            for index in range(config.server.api_servers):
                children.append(Child(_API_SERVER, self._bootstrap(f"api-server/{index}")))
        return children

    def _bootstrap(self, name: str) -> Bootstrap:
        address = self.directory.address
        return Bootstrap(
            name=name,
            pipeline=self._deployment.reference,
            config=self._deployment.config,
            run_directory=str(self.directory.path),
            orchestrator_address=address("orchestrator"),
            control_address=address(f"{name}.control"),
            connector_address=address(f"{name}.chunks"),
            client_address=address(f"{name}.client"),
            listen_fd=self._listen_fd if name.startswith("api-server/") else -1,
        )
