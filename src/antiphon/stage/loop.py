"""The loop of one stage replica: receive -> schedule -> execute -> route -> report.

In: StartRequest / StopRequest and chunks. Out: chunks, client frames, a few StageEvents per request.
Does not know: the model, the pipeline beyond its own edges, HTTP.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from antiphon.config.pipeline import EdgeRule, StageSpec
from antiphon.connector.base import Connector
from antiphon.errors import AntiphonError, RequestAbortedError
from antiphon.messages.control import (
    Joined,
    Leave,
    Leaving,
    PeerDied,
    StageEvent,
    StageEventKind,
    StartRequest,
    StopRequest,
    ToReplica,
)
from antiphon.messages.error_info import to_error, to_info
from antiphon.messages.interstage import ChunkFlag
from antiphon.stage.engine.base import StageEngine, StepResult
from antiphon.stage.inbox import Inbox, InputFailed, InputStarted
from antiphon.stage.outputs import OutputRouter
from antiphon.stage.report import StatisticsReporter
from antiphon.stage.request import StageOutput, StageRequest
from antiphon.stage.spans import StageSpans
from antiphon.transport.channel import GatheringOutlet, Inlet, Poller

log = logging.getLogger(__name__)
_IDLE_WAIT_S = 0.2
_TURN_S = 0.001
"""Steps that are shorter share a turn: what they make leaves together, and between them nobody looks at sockets."""
_LOOK_S = 0.02
"""How often deadlines are looked at."""


@dataclass
class _Bound:
    """A request that is bound to this replica and not released."""

    request: StageRequest
    has_begun: bool = False
    is_done: bool = False
    has_finished: bool = False
    """It is done because its engine has made everything, and nothing has failed since."""


class StageLoop:
    """Owns the requests bound to this replica, from StartRequest until `released` is said.

    turn_s: steps that begin within that time of a turn's begin belong to it; the first always does.
    """

    def __init__(
        self,
        replica: str,
        spec: StageSpec,
        rules: dict[str, EdgeRule],
        *,
        engine: StageEngine,
        connector: Connector,
        inbox: Inbox,
        router: OutputRouter,
        control: Inlet[ToReplica],
        events: GatheringOutlet,
        orchestrator_address: str,
        unhurried_address: str,
        reporter: StatisticsReporter,
        spans: StageSpans,
        on_joined: Callable[[], None],
        drain_s: float,
        turn_s: float = _TURN_S,
    ) -> None:
        self._replica = replica
        self._spec = spec
        self._rules = rules
        self._engine = engine
        self._connector = connector
        self._inbox = inbox
        self._router = router
        self._control = control
        self._events = events
        self._orchestrator_address = orchestrator_address
        self._unhurried_address = unhurried_address
        self._reporter = reporter
        self._spans = spans
        self._on_joined = on_joined
        self._bound: dict[str, _Bound] = {}
        self._poller = Poller()
        self._drain_s = drain_s
        self._turn_s = turn_s
        self._num_stops = 0
        self._has_left = False
        self._is_busy = False
        self._looked_s = 0.0
        self._done: set[str] = set()

    def stop(self) -> None:
        """Leave the pool, then leave `run`; the second call does not wait. Safe to call from a signal handler."""
        self._num_stops += 1

    def wake_on_signals(self) -> None:
        """See Poller.wake_on_signals."""
        self._poller.wake_on_signals()

    def run(self) -> None:
        """Serve until `stop`; then go on with what is bound until the orchestrator lets go, at most `drain_s`."""
        self._watch()
        while not self._num_stops and not self._has_left:
            self._turn()
        self._events.send(self._orchestrator_address, Leaving(self._replica))
        self._events.flush()
        drained_s = time.monotonic() + self._drain_s
        while not self._has_left and self._num_stops < 2 and time.monotonic() < drained_s:
            self._turn()
        for bound in self._bound.values():
            log.warning("req=%s replica=%s was cut off", bound.request.request_id, self._replica)

    def _turn(self) -> None:
        self.step()
        if not self._is_busy:
            self._poller.wait(_IDLE_WAIT_S)

    def step(self) -> None:
        """One turn of the loop; never waits."""
        began_s = time.monotonic()
        self._receive(began_s)
        self._look_at_the_clock(began_s)
        self._schedule()
        self._execute(began_s)
        self._send()
        self._report()

    def _watch(self) -> None:
        self._poller.register(self._control)
        self._poller.register(self._connector.fileno())
        engine_fd = self._engine.fileno()
        if engine_fd is not None:
            self._poller.register(engine_fd)

    def _receive(self, now_s: float) -> None:
        for message in self._control.receive():
            match message:
                case StartRequest():
                    self._start(message)
                case StopRequest():
                    self._stop_request(message)
                case Joined():
                    self._on_joined()
                case PeerDied(connector_address=address, client_address=client_address):
                    self._router.forget_peer(address, client_address)
                case Leave():
                    self._has_left = True
                case _:
                    assert_never(message)
        self._inbox.receive(now_s)

    def _start(self, start: StartRequest) -> None:
        consumers = self._router.open(start)
        producers = {peer.edge: peer.replica for peer in start.producers}
        inputs = self._inbox.open(start.request_id, start.epoch, producers, self._rules, time.monotonic())
        by_producer = {edge.partition("->")[0]: edge_input for edge, edge_input in inputs.items()}
        request = StageRequest(
            start.request_id, start.epoch, start.task, start.params, by_producer, consumers, bool(start.client_address)
        )
        self._bound[start.request_id] = _Bound(request)
        log.debug("req=%s stage=%s start", start.request_id, self._spec.name)

    def _stop_request(self, stop: StopRequest) -> None:
        bound = self._bound.get(stop.request_id)
        if bound is None or bound.request.epoch != stop.epoch:
            return
        self._end(bound)
        aborted = RequestAbortedError(f"{stop.request_id}: {stop.reason}")
        self._router.fail(stop.request_id, to_error(stop.error) if stop.error else aborted, ChunkFlag.ABORT)

    def _look_at_the_clock(self, now_s: float) -> None:
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            self._inbox.expire(now_s)
            for request_id, error in self._router.failures(now_s).items():
                self._fail(self._bound[request_id], error)

    def _schedule(self) -> None:
        for event in self._inbox.events():
            bound = self._bound.get(event.request_id)
            if bound is None or bound.is_done:
                continue
            match event:
                case InputStarted():
                    self._hand_to_engine(bound)
                case InputFailed(error=error):
                    self._fail(bound, error)

    def _hand_to_engine(self, bound: _Bound) -> None:
        bound.request.timeline.input_started_s = time.monotonic()
        try:
            self._engine.add(bound.request)
        except AntiphonError as error:
            self._fail(bound, error)

    def _execute(self, began_s: float) -> None:
        """One step of the engine; of very short ones as many as begin before the turn has lasted turn_s.

        An engine with a device has launched its next step when it gives the results of one: the rest of the turn, which
        sends them, is in the device's time.
        """
        while self._engine.has_work():
            self._route(self._engine.step())
            if time.monotonic() - began_s >= self._turn_s:
                return

    def _route(self, results: list[StepResult]) -> None:
        for result in results:
            bound = self._bound.get(result.request.request_id)
            if bound is not None and not bound.is_done:
                self._route_one(bound, result.output)

    def _send(self) -> None:
        """Let go of what the turn has made and read; a stage that has nothing more to do holds nobody up.

        Clients first: their few bytes need not wait until a prompt's rows are copied.
        """
        self._router.send()
        self._put_rows()
        self._inbox.end_step()
        self._is_busy = self._engine.has_work()
        if not self._is_busy:
            self._inbox.own_unread()
        self._connector.flush()

    def _put_rows(self) -> None:
        """Cut chunks of the rows that are due; a request without room for its rows is not scheduled until it has."""
        for request_id, is_blocked in self._router.flush().items():
            request = self._bound[request_id].request
            if request.is_blocked is not is_blocked:
                request.is_blocked = is_blocked
                self._spans.blocked(request_id, is_blocked)

    def _route_one(self, bound: _Bound, output: StageOutput | AntiphonError) -> None:
        if not bound.has_begun:
            self._begins(bound)
        if isinstance(output, AntiphonError):
            return self._fail(bound, output)
        try:
            self._router.route(bound.request.request_id, output)
        except AntiphonError as error:
            return self._fail(bound, error)
        timeline = bound.request.timeline
        if not timeline.first_output_s and (output.handoff or output.client):
            timeline.first_output_s = time.monotonic()
        if output.finished:
            bound.has_finished = True
            self._end(bound)

    def _begins(self, bound: _Bound) -> None:
        queue_s = bound.request.timeline.queue_s
        if queue_s is not None:
            bound.has_begun = True
            self._reporter.queued(queue_s)

    def _fail(self, bound: _Bound, error: AntiphonError) -> None:
        log.warning("req=%s replica=%s failed: %s", bound.request.request_id, self._replica, error.message)
        bound.has_finished = False
        self._end(bound)
        self._router.fail(bound.request.request_id, error)
        self._say(bound, StageEventKind.FAILED, error)

    def _end(self, bound: _Bound) -> None:
        bound.is_done = True
        self._done.add(bound.request.request_id)
        bound.request.timeline.done_s = bound.request.timeline.done_s or time.monotonic()
        self._engine.abort(bound.request.request_id)
        self._inbox.close(bound.request.request_id)

    def _report(self) -> None:
        for request_id in [name for name in self._done if self._router.is_drained(name)]:
            bound = self._bound.pop(request_id)
            self._done.remove(request_id)
            self._router.close(request_id)
            self._spans.released(bound.request)
            self._say(bound, StageEventKind.RELEASED)
        self._reporter.report_if_due(len(self._bound))
        self._events.flush()

    def _say(self, bound: _Bound, kind: StageEventKind, error: AntiphonError | None = None) -> None:
        info = to_info(error) if error is not None else None
        event = StageEvent(bound.request.request_id, bound.request.epoch, self._replica, kind, info)
        self._events.send(self._unhurried_address if self._can_wait(bound) else self._orchestrator_address, event)

    def _can_wait(self, bound: _Bound) -> bool:
        """True of what is said when the orchestrator has to hear of the stages behind this one in any case."""
        return bound.has_finished and bool(bound.request.consumers) and not self._num_stops
