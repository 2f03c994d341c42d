"""The orchestrator: receive batch -> advance -> perform. The control plane, and nothing but it.

In: SubmitRequest, AbortRequest, StageEvent, Ready, Leaving, ends of processes. Out: StartRequest, StopRequest,
replies. Does not know: tokens, tensors, audio, HTTP; it never imports numpy or torch.
"""

import logging
import time
from typing import Protocol, assert_never

import msgspec

from antiphon.config.pipeline import PipelineSpec
from antiphon.errors import AntiphonError, OverloadedError, ReplicaDiedError, RequestAbortedError
from antiphon.ids import ORCHESTRATOR, stage_of
from antiphon.messages.control import (
    AbortRequest,
    AdmissionNews,
    Counter,
    Joined,
    Leave,
    Leaving,
    PeerDied,
    Ready,
    RequestAccepted,
    RequestRejected,
    StageEvent,
    StatsReport,
    SubmitRequest,
    ToOrchestrator,
)
from antiphon.messages.error_info import to_info
from antiphon.messages.report_parts import ReportGatherer, parts_of
from antiphon.monitor.windows import HostSnapshot, ReceivedReport
from antiphon.orchestrator.admission import Admission
from antiphon.orchestrator.members import ApiServer, Member, Members
from antiphon.orchestrator.placement import Placement
from antiphon.orchestrator.quarantine import Quarantine
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
from antiphon.orchestrator.tally import Outcome, ProcessTally, RequestTally
from antiphon.transport.channel import ChannelFullError

log = logging.getLogger(__name__)
_FROM_REQUESTS = StageEvent | SubmitRequest | AbortRequest
_OF_NO_REQUEST = AdmissionNews | StatsReport | PeerDied | Joined | Leave
"""Told to members whatever runs."""


class ControlOutlet(Protocol):
    """Speaks to members by their control addresses."""

    def send(self, address: str, message: msgspec.Struct) -> None:
        """Queue a message; ChannelFullError if the peer does not read."""

    def flush_to(self, address: str) -> None:
        """Somebody waits for what has been queued there."""

    def forget(self, address: str) -> None:
        """The process there has ended."""


class Processes(Protocol):
    """The kernel's view of the members' processes."""

    def watch(self, name: str, pid: int) -> bool:
        """Tell when the process ends; False if it has."""

    def kill(self, name: str) -> None:
        """End a process that does not answer."""

    def remove_sockets(self, *addresses: str) -> None:
        """Remove the socket files of a process that has ended."""


class Orchestrator:
    """Owns every admitted request's state and admission. Single-threaded; no I/O but its outlet and `processes`.

    release_deadline_s: how long a replica may take to say `released` after a StopRequest before it counts as hung.
    apart_s: how long requests that start again do so one at a time.
    """

    def __init__(
        self,
        pipeline: PipelineSpec,
        admission: Admission,
        outlet: ControlOutlet,
        processes: Processes,
        *,
        release_deadline_s: float,
        apart_s: float = 0.0,
    ) -> None:
        self._pipeline = pipeline
        self._admission = admission
        self._outlet = outlet
        self._processes = processes
        self._release_deadline_s = release_deadline_s
        self._members = Members(pipeline)
        self._placement = Placement(self._members.pools)
        self._leaving: set[str] = set()
        """Api-servers that have said that they end."""
        self._requests: dict[str, RequestState] = {}
        self._ending_since_s: dict[str, float | None] = {}
        self._owed_releases: set[str] = set()
        """Requests that are over but for releases that may have been said without hurry."""
        self._waiting_for_replica: dict[str, SubmitRequest] = {}
        self._quarantine = Quarantine(apart_s)
        self._is_told_full = False
        self._are_pools_told = True
        self._gatherer = ReportGatherer()
        self._reports: dict[str, ReceivedReport] = {}
        self._num_request_messages = 0
        self._tally = RequestTally()
        self._process_tally = ProcessTally()

    @property
    def num_open(self) -> int:
        """Requests that are bound and not released, or wait: for admission, a replica, or their turn after a death."""
        return len(self._requests) + self._num_waiting

    @property
    def _num_waiting(self) -> int:
        return self._admission.num_queued + len(self._waiting_for_replica) + len(self._quarantine)

    @property
    def is_owed_releases(self) -> bool:
        """True while a request waits for nothing but what may have been said without hurry: then look at it."""
        return bool(self._owed_releases) or bool(self._quarantine)

    @property
    def num_request_messages(self) -> int:
        """Messages about requests, taken in and sent since the start: a turn that changes it had work."""
        return self._num_request_messages

    def snapshot(self) -> HostSnapshot:
        """What the monitor looks at as a window closes; its maxima begin anew."""
        most_waiting, most_inflight = self._admission.take_max_queued(), self._members.take_max_inflight()
        return HostSnapshot(tuple(self._reports.values()), self._counters(), most_waiting, most_inflight)

    def handle(self, message: ToOrchestrator) -> None:
        """Take in one message and perform what follows."""
        if isinstance(message, _FROM_REQUESTS):
            self._num_request_messages += 1
        match message:
            case StageEvent():
                self._advance(message.request_id, message)
            case SubmitRequest():
                self._submit(message)
            case AbortRequest():
                self._abort(message)
            case StatsReport():
                self._keep(message)
            case Ready():
                self._join(message)
            case Leaving():
                self._drain(message.name)
            case _:
                assert_never(message)

    def process_ended(self, name: str, pid: int = 0, reason: str = "its process has ended") -> None:
        """The process `pid` called `name` has ended, not a later one of that name. pid 0: whichever is here."""
        member = self._members.find(name)
        if member is not None and pid in (0, member.pid):
            self._leave(member, reason)

    def expire(self, now_s: float) -> None:
        """Kill replicas that have not released a stopped request in time: they hang. Call it about once a second."""
        hung: dict[str, str] = {}
        for request_id, since_s in list(self._ending_since_s.items()):
            if since_s is None:
                self._ending_since_s[request_id] = now_s
            elif now_s - since_s > self._release_deadline_s:
                self._ending_since_s[request_id] = now_s
                for name in self._last_holders(self._requests[request_id]):
                    hung.setdefault(name, request_id)
        for name, request_id in sorted(hung.items()):
            waited = f"has not released {request_id} in {self._release_deadline_s:g} s (timeouts.release_s)"
            self._kill(name, waited)

    def _last_holders(self, state: RequestState) -> list[str]:
        """The unreleased replicas without an unreleased consumer: a producer waits for what its consumer holds."""
        stages = {stage_of(name) for name in state.unreleased}
        waiting = {edge.producer for edge in self._pipeline.edges if edge.consumer in stages}
        return [name for name in state.unreleased if stage_of(name) not in waiting]

    @property
    def due_s(self) -> float:
        """When `start_again` is to be called at the latest."""
        return self._quarantine.due_s

    def start_again(self, now_s: float) -> None:
        """Let the requests go that have met a death and whose turn it is; call it when `due_s` has come."""
        restarted = self._quarantine.take(now_s)
        for submit in restarted:
            self._admission.resubmit(submit)
        if restarted:
            self._admit()

    def tell_news(self) -> None:
        """Tell every api-server who has come and gone, and that there is no room any more, or again.

        Call it after each batch of messages.
        """
        if not self._are_pools_told:
            self._tell_all(*self._pools())
        if self._admission.is_full != self._is_told_full:
            self._is_told_full = self._admission.is_full
            self._tell_all(self._admission.news())

    def report(self) -> None:
        """Pass the last report of every process, and the pools' own counts, to every api-server."""
        if self._is_told_full:
            self._tell_all(self._admission.news())
        self._tell_all(*self._pools())
        for last in self._reports.values():
            self._tell_all(*parts_of(last.report.source, last.report.counters))

    def _pools(self) -> tuple[StatsReport, ...]:
        self._are_pools_told = True
        return parts_of("pools", self._counters())

    def _tell_all(self, *news: AdmissionNews | StatsReport) -> None:
        for api_server in self._members.api_servers:
            for each in news:
                self._tell(api_server, each)

    def _keep(self, part: StatsReport) -> None:
        """Reports of members, and of this process itself; the last words of one that has gone are not kept."""
        if part.source == ORCHESTRATOR or self._members.find(part.source) is not None:
            report = self._gatherer.take(part)
            if report is not None:
                self._reports[part.source] = ReceivedReport(time.monotonic(), report)

    def _submit(self, submit: SubmitRequest) -> None:
        if self._members.api_server(submit.api_server) is None:
            return log.warning("req=%s came from %s, which is not here", submit.request_id, submit.api_server)
        try:
            if self._is_used(submit.request_id):
                raise OverloadedError(f"{submit.request_id} is still in use; try again with another id")
            if submit.is_restart:
                now_s = time.monotonic()
                self._quarantine.put(submit, now_s)
                self.start_again(now_s)
            elif (displaced := self._admission.submit(submit)) is not None:
                self._reject(displaced, self._admission.news().refusal())
        except OverloadedError as error:
            self._reject(submit, error)
        self._admit()

    def _is_used(self, request_id: str) -> bool:
        waits = self._admission.is_queued(request_id) or request_id in self._waiting_for_replica
        return waits or request_id in self._requests or request_id in self._quarantine

    def _admit(self) -> None:
        while (submit := self._admission.admit_next()) is not None:
            try:
                self._bind(submit)
            except AntiphonError as error:
                self._admission.released()
                if submit.is_restart and isinstance(error, OverloadedError):
                    self._waiting_for_replica[submit.request_id] = submit
                else:
                    self._reject(submit, error)

    def _bind(self, submit: SubmitRequest) -> None:
        api_server = self._members.api_server(submit.api_server)
        if api_server is None:  # withdraw_all_of took out what it had submitted
            raise ReplicaDiedError(f"{submit.api_server} is not here")
        route = self._pipeline.route(submit.task, submit.inputs, submit.outputs)
        binding = self._placement.bind(route)
        self._requests[submit.request_id] = RequestState(
            submit.request_id, submit.epoch, submit.api_server, binding.names, binding.last
        )
        self._tally.bound(submit.request_id, submit.task)
        self._quarantine.begins(submit.request_id, time.monotonic())
        entry = binding.entry
        accepted = RequestAccepted(submit.request_id, submit.epoch, entry.name, entry.connector_address, route.finals)
        self._tell(api_server, accepted)
        self._outlet.flush_to(api_server.control_address)  # it makes the input ready while the stages hear of it
        for stage, replica in binding.replicas.items():
            self._tell(replica, binding.start_request(submit, stage, api_server.client_address))
        log.debug("req=%s bound to %s", submit.request_id, binding.names)

    def _reject(self, submit: SubmitRequest, error: AntiphonError) -> None:
        is_aborted = isinstance(error, RequestAbortedError)
        self._tally.rejected(submit.task, Outcome.ABORTED if is_aborted else Outcome.REJECTED)
        self._quarantine.over(submit.request_id)
        api_server = self._members.api_server(submit.api_server)
        if api_server is not None:
            self._tell(api_server, RequestRejected(submit.request_id, to_info(error)))

    def _abort(self, abort: AbortRequest) -> None:
        waiting = self._admission.withdraw(abort.request_id)
        waiting = waiting or self._waiting_for_replica.pop(abort.request_id, None)
        waiting = waiting or self._quarantine.withdraw(abort.request_id)
        if waiting is not None:
            self._reject(waiting, RequestAbortedError(f"{abort.request_id} was aborted: {abort.reason}"))
        self._advance(abort.request_id, Aborted(abort.reason))

    def _advance(self, request_id: str, event: Event) -> None:
        before = self._requests.get(request_id)
        if before is None:
            return
        state, actions = advance(before, event)
        if before.phase is Phase.RUNNING and state.phase is not Phase.RUNNING:
            self._tally.stopped(request_id, event)
        self._requests[request_id] = state
        if state.is_owed_releases:
            self._owed_releases.add(request_id)
        for action in actions:
            self._perform(state, action)
        match state.phase:
            case Phase.RUNNING:
                pass
            case Phase.ENDING:
                self._ending_since_s.setdefault(request_id, None)
            case Phase.RELEASED:
                del self._requests[request_id]
                self._tally.released(request_id)
                self._ending_since_s.pop(request_id, None)
                self._owed_releases.discard(request_id)
                self._admission.released()
                self._quarantine.over(request_id)
                if self._quarantine:
                    self.start_again(time.monotonic())
                self._admit()
            case _:
                assert_never(state.phase)

    def _perform(self, state: RequestState, action: Action) -> None:
        match action:
            case TellReplica(replica=name, message=message):
                replica = self._members.replica(name)
                if replica is not None:
                    self._tell(replica, message)
            case TellApiServer(message=reply):
                api_server = self._members.api_server(state.api_server)
                if api_server is not None:
                    self._tell(api_server, reply)
            case ReplicaReleased(replica=name):
                pool = self._members.pool_of(name)
                if pool is not None:
                    pool.release(name)
                    if pool.is_drained(name):
                        self._dismiss(name)
            case _:
                assert_never(action)

    def _join(self, ready: Ready) -> None:
        self.process_ended(ready.name, reason="another process has taken its name")
        if ready.pid and not self._processes.watch(ready.name, ready.pid):
            self._remove_sockets(ready.control_address, ready.connector_address, ready.client_address)
            return log.warning("%s ended before it joined", ready.name)
        member = self._members.join(ready)
        self._process_tally.joined(ready.name)
        if self._members.pool_of(ready.name) is not None:
            self._tell(member, Joined())
        elif self._is_told_full:
            self._tell(member, self._admission.news())
        log.info("%s joined", ready.name)
        waiting, self._waiting_for_replica = self._waiting_for_replica, {}
        for submit in waiting.values():
            self._admission.resubmit(submit)
        self._admit()
        self._are_pools_told = False

    def _drain(self, name: str) -> None:
        pool = self._members.pool_of(name)
        if pool is None:
            self._leaving.add(name)
        else:
            log.info("%s leaves when nothing is bound to it any more", name)
            pool.drain(name)
            if pool.is_drained(name):
                self._dismiss(name)
            self._are_pools_told = False

    def _dismiss(self, name: str) -> None:
        replica = self._members.replica(name)
        if replica is not None:
            self._tell(replica, Leave())

    def _leave(self, member: Member, reason: str) -> None:
        pool = self._members.pool_of(member.name)
        is_expected = member.name in self._leaving if pool is None else pool.is_drained(member.name)
        self._leaving.discard(member.name)
        log.log(logging.INFO if is_expected else logging.WARNING, "%s has gone: %s", member.name, reason)
        if not is_expected:
            self._process_tally.died(member.name)
        self._members.leave(member.name)
        self._reports.pop(member.name, None)
        self._gatherer.forget(member.name)
        self._outlet.forget(member.control_address)
        if isinstance(member, ApiServer):
            self._forget_requests_of(member.name)
        else:
            self._end_requests_of(member.name, reason)
        client_address = member.client_address if isinstance(member, ApiServer) else ""
        self._remove_sockets(member.control_address, member.connector_address, client_address)
        for other in self._members.all:
            self._tell(other, PeerDied(member.name, member.connector_address, client_address))
        self._are_pools_told = False

    def _end_requests_of(self, replica: str, reason: str) -> None:
        """Of a replica that has died. If one of them is on trial, it is the cause, and the others need no trial."""
        bound = [name for name, state in self._requests.items() if replica in state.unreleased]
        guilty = next((name for name in bound if self._quarantine.is_on_trial(name)), "")
        if guilty:
            self._quarantine.convict()
        for request_id in bound:
            self._advance(request_id, ReplicaDied(replica, reason, is_its_doing=request_id == guilty))

    def _remove_sockets(self, *addresses: str) -> None:
        self._processes.remove_sockets(*(address for address in addresses if address))

    def _forget_requests_of(self, api_server: str) -> None:
        self._admission.withdraw_all_of(api_server)
        self._quarantine.withdraw_all_of(api_server)
        waiting = self._waiting_for_replica.items()
        self._waiting_for_replica = {name: submit for name, submit in waiting if submit.api_server != api_server}
        for request_id, state in list(self._requests.items()):
            if state.api_server == api_server:
                self._advance(request_id, ApiServerDied())

    def _kill(self, name: str, why: str) -> None:
        log.error("%s hangs: it %s; killing it", name, why)
        self._processes.kill(name)

    def _tell(self, member: Member, message: msgspec.Struct) -> None:
        if not isinstance(message, _OF_NO_REQUEST):
            self._num_request_messages += 1
        try:
            self._outlet.send(member.control_address, message)
        except ChannelFullError:
            self._kill(member.name, "does not read its control lane")

    def _counters(self) -> tuple[Counter, ...]:
        return (
            Counter("requests_inflight", (), float(self._admission.num_inflight)),
            Counter("requests_queued", (), float(self._num_waiting)),
            Counter("request_messages_total", (), float(self._num_request_messages)),
            *self._members.counters(),
            *self._tally.counters(),
            *self._process_tally.counters(),
        )
