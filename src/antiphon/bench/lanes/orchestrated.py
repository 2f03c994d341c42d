"""The orchestrator's real process, with this process in the parts of its api-server and of its replicas.

In: how many requests. Out: control messages per second. Does not know: stages, clients.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from antiphon.bench.lanes.effort import Deadline
from antiphon.config.pipeline import Modality
from antiphon.config.resolve import resolve
from antiphon.errors import ConfigError, StageError
from antiphon.ids import ORCHESTRATOR
from antiphon.launch.child import Child, Module, wait_any
from antiphon.messages import codec
from antiphon.messages.bootstrap import Bootstrap
from antiphon.messages.control import (
    Ready,
    RequestAccepted,
    RequestReleased,
    StageEvent,
    StageEventKind,
    StartRequest,
    SubmitRequest,
)
from antiphon.messages.params import RequestParams
from antiphon.models.simulated.emitter_pipeline import THREE
from antiphon.transport.address import RunDirectory
from antiphon.transport.channel import Inlet, Outlet, Poller

STAGES = tuple(stage.name for stage in THREE.stages)
MESSAGES_PER_REQUEST = 3 + 2 * len(STAGES)
"""SubmitRequest, RequestAccepted, RequestReleased; for each stage a StartRequest and a StageEvent."""
_API_SERVER = "bench"
_REFERENCE = "antiphon.models.simulated.emitter_pipeline:THREE"
_NUM_INFLIGHT = 64
_START_S = 30.0
_END_S = 5.0
_WAIT_S = 0.2


def ready(api_address: str, replica_address: str) -> Iterator[Ready]:
    """One replica of each stage, and an api-server."""
    yield Ready(_API_SERVER, api_address, "chunks", "client")
    for stage in STAGES:
        yield Ready(f"{stage}/0", replica_address, "chunks")


def submit(request_id: str) -> SubmitRequest:
    """A request that crosses all stages."""
    text = frozenset({Modality.TEXT})
    outputs = frozenset({Modality.TEXT, Modality.AUDIO, Modality.IMAGE})
    return SubmitRequest(request_id, _API_SERVER, "chat", text, outputs, RequestParams())


def life_of(request_id: str, epoch: int, stages: tuple[str, ...] = STAGES) -> Iterator[StageEvent]:
    """What its replicas say."""
    for stage in stages:
        yield StageEvent(request_id, epoch, f"{stage}/0", StageEventKind.RELEASED)


class OrchestratorBench:
    """Owns an orchestrator's process and the two inlets that it speaks to."""

    def __init__(self, directory: str, deadline: Deadline) -> None:
        self._directory = RunDirectory(Path(directory))
        self._deadline = deadline
        self._child = Child(Module.ORCHESTRATOR, ORCHESTRATOR)
        self._orchestrator = self._directory.address(ORCHESTRATOR)
        self._unhurried = self._directory.address(f"{ORCHESTRATOR}.unhurried")
        self._api_server = Inlet(self._directory.address("api-server"), codec.TO_API_SERVER)
        self._replicas = Inlet(self._directory.address("replicas"), codec.TO_REPLICA)
        self._outlet = Outlet()
        self._num_asked = 0
        self._num_messages = 0

    def __enter__(self) -> Self:
        self._api_server.startup()
        self._replicas.startup()
        config = resolve(_REFERENCE, THREE).config
        server = Bootstrap(
            name="launcher",
            pipeline=_REFERENCE,
            config=config,
            run_directory=str(self._directory.path),
            orchestrator_address=self._orchestrator,
            unhurried_address=self._unhurried,
            control_address="",
            working_directory=os.getcwd(),
        )
        self._child.start(server)
        problem = self._child.read_status() if wait_any([self._child], _START_S) else f"not ready in {_START_S:g} s"
        if problem:
            self._child.signal(signal.SIGKILL)
            raise ConfigError([f"the orchestrator could not start: {problem}"])
        for message in ready(self._api_server.address, self._replicas.address):
            self._outlet.send(self._orchestrator, message)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._child.signal(signal.SIGTERM)
        if not self._child.wait(_END_S):
            self._child.signal(signal.SIGKILL)
            self._child.wait(_END_S)
        self._child.close()
        self._outlet.close()
        self._api_server.close()
        self._replicas.close()

    def messages_per_s(self, num_requests: int) -> float:
        """Control messages in and out per second, 64 requests at any time; StageError if there are too few or many."""
        poller = Poller()
        poller.register(self._api_server)
        poller.register(self._replicas)
        self._num_messages, num_released, left = 0, 0, num_requests
        began_s = time.perf_counter()
        for _ in range(min(_NUM_INFLIGHT, num_requests)):
            left -= self._submit()
        while num_released < num_requests:
            num_new = self._take_in()
            num_released += num_new
            for _ in range(min(num_new, left)):
                left -= self._submit()
            self._deadline.check("the orchestrator")
            if not num_new:
                poller.wait(_WAIT_S)
        rate = self._num_messages / (time.perf_counter() - began_s)
        expected = num_requests * MESSAGES_PER_REQUEST
        if self._num_messages != expected:
            raise StageError(f"{self._num_messages} control messages for {num_requests} requests, expected {expected}")
        return rate

    def _submit(self) -> int:
        self._num_asked += 1
        self._say(submit(f"req-{self._num_asked:016x}"), self._orchestrator)
        return 1

    def _take_in(self) -> int:
        """Answer for every replica and api-server; gives how many requests have been released."""
        num_released = 0
        for to_replica in self._replicas.receive():
            if isinstance(to_replica, StartRequest):
                self._num_messages += 1
                stage = to_replica.producers[0].edge.rpartition("->")[2]
                has_hurry = not to_replica.consumers
                for event in life_of(to_replica.request_id, to_replica.epoch, (stage,)):
                    self._say(event, self._orchestrator if has_hurry else self._unhurried)
        for to_api_server in self._api_server.receive():
            self._num_messages += isinstance(to_api_server, RequestAccepted | RequestReleased)
            num_released += isinstance(to_api_server, RequestReleased)
        return num_released

    def _say(self, message: SubmitRequest | StageEvent, address: str) -> None:
        self._num_messages += 1
        self._outlet.send(address, message)
