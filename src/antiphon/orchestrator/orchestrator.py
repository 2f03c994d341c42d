"""The orchestrator: receive batch -> advance -> perform. The control plane, and nothing but it.

In: SubmitRequest, AbortRequest, StageEvent, Ready, ProcessDied, StatsReport. Out: StartRequest, StopRequest, replies.
Does not know: tokens, tensors, audio, HTTP; it never imports numpy or torch.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

import msgspec

from antiphon.config.pipeline import PipelineSpec
from antiphon.errors import AntiphonError, OverloadedError, RequestAbortedError
from antiphon.ids import stage_of
from antiphon.messages.control import (
    AbortRequest,
    Counter,
    Joined,
    PeerDied,
    ProcessDied,
    Ready,
    RequestAccepted,
    RequestRejected,
    StageEvent,
    StatsReport,
    SubmitRequest,
    ToOrchestrator,
)
from antiphon.messages.error_info import to_info
from antiphon.orchestrator.admission import Admission
from antiphon.orchestrator.placement import bind
from antiphon.orchestrator.request_state import (
    Aborted,
    Action,
    ApiServerDied,
    Event,
    Phase,
    ReplicaDied,
    ReplicaReleased,
    RequestState,
    TellApiServer,
    TellReplica,
    advance,
)
from antiphon.orchestrator.stage_pool import Replica, StagePool
from antiphon.transport.channel import ChannelFullError

log = logging.getLogger(__name__)
Send = Callable[[str, msgspec.Struct], None]
"""Send a message to an address; ChannelFullError if the peer does not read."""


@dataclass(frozen=True)
class ApiServer:
    """An api-server and where it hears: control lane and client lane."""

    name: str
    control_address: str
    client_address: str


class Orchestrator:
    """Owns every admitted request's state, the stage pools and admission. Single-threaded; no I/O but `send`."""

    def __init__(self, pipeline: PipelineSpec, admission: Admission, send: Send) -> None:
        self._pipeline = pipeline
        self._admission = admission
        self._send = send
        self._pools = {stage.name: StagePool(stage.name) for stage in pipeline.stages}
        self._api_servers: dict[str, ApiServer] = {}
        self._requests: dict[str, RequestState] = {}
        self._reports: dict[str, StatsReport] = {}
        self._num_request_messages = 0

    @property
    def num_open(self) -> int:
        """Requests that are bound and not released, or wait for admission."""
        return len(self._requests) + self._admission.num_queued

    def handle(self, message: ToOrchestrator) -> None:
        """Take in one message and perform what follows."""
        if isinstance(message, StageEvent | SubmitRequest | AbortRequest):
            self._num_request_messages += 1
        match message:
            case StageEvent():
                self._advance(message.request_id, message)
            case SubmitRequest():
                self._submit(message)
            case AbortRequest():
                self._abort(message)
            case StatsReport():
                self._reports[message.source] = message
            case Ready():
                self._join(message)
            case ProcessDied():
                self._leave(message)
            case _:
                assert_never(message)

    def report(self) -> None:
        """Pass the last report of every process, and the pools' own counts, to every api-server."""
        pools = StatsReport("pools", self._pool_counters())
        for api_server in self._api_servers.values():
            for report in [pools, *self._reports.values()]:
                self._tell(api_server.control_address, report)

    def _submit(self, submit: SubmitRequest) -> None:
        if submit.api_server not in self._api_servers:
            return log.warning("req=%s came from %s, which is not here", submit.request_id, submit.api_server)
        try:
            if submit.request_id in self._requests or self._admission.is_queued(submit.request_id):
                raise OverloadedError(f"{submit.request_id} is still in use; try again with another id")
            self._admission.submit(submit)
        except OverloadedError as error:
            self._reject(submit, error)
        self._admit()

    def _admit(self) -> None:
        while (submit := self._admission.admit_next()) is not None:
            try:
                self._bind(submit)
            except AntiphonError as error:
                self._admission.released()
                self._reject(submit, error)

    def _bind(self, submit: SubmitRequest) -> None:
        route = self._pipeline.route(submit.task, submit.inputs, submit.outputs)
        binding = bind(route, self._pools)
        names = frozenset(replica.name for replica in binding.replicas.values())
        state = RequestState(submit.request_id, 0, submit.api_server, names)
        self._requests[submit.request_id] = state
        api_server = self._api_servers[submit.api_server]
        for stage, replica in binding.replicas.items():
            start = binding.start_request(submit, stage, state.epoch, api_server.client_address)
            self._tell(replica.control_address, start)
        accepted = RequestAccepted(
            submit.request_id, state.epoch, binding.entry.name, binding.entry.connector_address, route.finals
        )
        self._tell(api_server.control_address, accepted)
        log.debug("req=%s bound to %s", submit.request_id, ", ".join(sorted(names)))

    def _reject(self, submit: SubmitRequest, error: AntiphonError) -> None:
        api_server = self._api_servers.get(submit.api_server)
        if api_server is not None:
            self._tell(api_server.control_address, RequestRejected(submit.request_id, to_info(error)))

    def _abort(self, abort: AbortRequest) -> None:
        waiting = self._admission.withdraw(abort.request_id)
        if waiting is not None:
            self._reject(waiting, RequestAbortedError(f"{abort.request_id} was aborted: {abort.reason}"))
        self._advance(abort.request_id, Aborted(abort.reason))

    def _advance(self, request_id: str, event: Event) -> None:
        state = self._requests.get(request_id)
        if state is None:
            return
        state, actions = advance(state, event)
        self._requests[request_id] = state
        for action in actions:
            self._perform(state, action)
        if state.phase is Phase.RELEASED:
            del self._requests[request_id]
            self._admission.released()
            self._admit()

    def _perform(self, state: RequestState, action: Action) -> None:
        match action:
            case TellReplica(replica=name, message=message):
                replica = self._pools[stage_of(name)].find(name)
                if replica is not None:
                    self._tell(replica.control_address, message)
            case TellApiServer(message=reply):
                api_server = self._api_servers.get(state.api_server)
                if api_server is not None:
                    self._tell(api_server.control_address, reply)
            case ReplicaReleased(replica=name):
                self._pools[stage_of(name)].release(name)
            case _:
                assert_never(action)

    def _join(self, ready: Ready) -> None:
        stage = stage_of(ready.name)
        if stage in self._pools:
            self._pools[stage].join(Replica(ready.name, ready.control_address, ready.connector_address))
            self._tell(ready.control_address, Joined())
        else:
            self._api_servers[ready.name] = ApiServer(ready.name, ready.control_address, ready.client_address)
        log.info("%s joined", ready.name)
        self.report()

    def _leave(self, died: ProcessDied) -> None:
        log.warning("%s died: %s", died.name, died.reason)
        self._reports.pop(died.name, None)
        self._forget_replica_or_api_server(died)
        self.report()

    def _forget_replica_or_api_server(self, died: ProcessDied) -> None:
        pool = self._pools.get(stage_of(died.name))
        if pool is not None:
            replica = pool.leave(died.name)
            for request_id in list(self._requests):
                self._advance(request_id, ReplicaDied(died.name, died.reason))
            if replica is not None:
                self._tell_peers(PeerDied(replica.connector_address))
        elif self._api_servers.pop(died.name, None) is not None:
            self._admission.withdraw_all_of(died.name)
            for request_id, state in list(self._requests.items()):
                if state.api_server == died.name:
                    self._advance(request_id, ApiServerDied())

    def _tell_peers(self, died: PeerDied) -> None:
        addresses = [api_server.control_address for api_server in self._api_servers.values()]
        addresses += [replica.control_address for pool in self._pools.values() for replica in pool.replicas]
        for address in addresses:
            self._tell(address, died)

    def _tell(self, address: str, message: msgspec.Struct) -> None:
        if not isinstance(message, StatsReport | PeerDied | Joined):
            self._num_request_messages += 1
        try:
            self._send(address, message)
        except ChannelFullError as error:
            log.error("%s; the message is lost: its process hangs or has died", error.message)

    def _pool_counters(self) -> tuple[Counter, ...]:
        counters = [
            Counter("requests_inflight", (), float(self._admission.num_inflight)),
            Counter("requests_queued", (), float(self._admission.num_queued)),
            Counter("request_messages_total", (), float(self._num_request_messages)),
        ]
        for pool in self._pools.values():
            counters.append(Counter("replicas_live", (("stage", pool.stage),), float(pool.num_live)))
            for name, count in pool.inflight().items():
                counters.append(Counter("replica_inflight", (("replica", name),), float(count)))
        return tuple(counters)
