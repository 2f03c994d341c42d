"""Output routing: each StageOutput goes to the lanes its model named, after a check against the declaration.

In: StageOutputs, ends and failures per request. Out: chunks on bound edges, ClientFrames.
Does not know: models, scheduling, what an output means. It forwards; it never decides what goes where.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from antiphon.config.pipeline import ChunkPlan, EdgeSpec, StageSpec
from antiphon.connector.base import Connector
from antiphon.connector.cursor import EdgeCursor, EdgeTarget
from antiphon.connector.layout import Arrays
from antiphon.errors import AntiphonError, HandoffTimeoutError, StageError, UndeclaredOutputError
from antiphon.messages.client import (
    Addressed,
    ClientFrame,
    ClientOutput,
    OutputEnd,
    OutputError,
    joined,
    num_outputs,
    types_of,
)
from antiphon.messages.control import Counter, StartRequest
from antiphon.messages.error_info import to_info
from antiphon.messages.interstage import ChunkFlag
from antiphon.stage.declared import DeclaredOutput, RowForm, has_form, in_words
from antiphon.stage.output_form import problem_of, problem_of_form
from antiphon.stage.output_meter import OutputMeter
from antiphon.stage.request import StageOutput
from antiphon.transport.channel import ChannelFullError, NoDescriptorError, Outlet


@dataclass
class _Route:
    start: StartRequest
    cursors: dict[str, EdgeCursor]
    """Consumer -> cursor of the edge to it."""
    client_ended: bool
    row_forms: dict[str, RowForm] = field(default_factory=dict)
    """Consumer -> what the request's first rows for it are: later rows are joined to them."""
    said: list[ClientOutput] = field(default_factory=list)
    """What the client has not been sent yet."""


class OutputRouter:
    """Owns, per open request, the cursors of its bound out-edges and whether its client lane has ended."""

    def __init__(
        self,
        replica: str,
        spec: StageSpec,
        out_edges: tuple[EdgeSpec, ...],
        plans: dict[str, ChunkPlan],
        connector: Connector,
        outlet: Outlet,
        *,
        deadlines_s: dict[str, float],
    ) -> None:
        self._replica = replica
        self._spec = spec
        self._edges = {edge.consumer: edge for edge in out_edges}
        self._consumers = {edge.name: edge.consumer for edge in out_edges}
        self._declared = {output.key: DeclaredOutput(output) for output in spec.outputs}
        self._whole_keys = {key for key, output in self._declared.items() if output.is_whole}
        self._client_types = types_of(spec.client_kinds)
        self._plans = plans
        self._connector = connector
        self._outlet = outlet
        self._deadlines_s = deadlines_s
        self._routes: dict[str, _Route] = {}
        self._unsent: dict[str, _Route] = {}
        """Those with rows or an end that are not sent: the others have nothing to flush."""
        self._unsaid: dict[str, _Route] = {}
        """Those with something for the client that is not sent."""
        self._meter = OutputMeter(tuple(plans))
        self._failed: dict[str, AntiphonError] = {}
        self._was_waiting = False

    def open(self, start: StartRequest) -> frozenset[str]:
        """Bind a request's lanes; gives the consumers that are bound."""
        cursors = {}
        for peer in start.consumers:
            target = EdgeTarget(
                start.request_id, start.epoch, peer.edge, self._replica, peer.address, self._plans[peer.edge]
            )
            meter = self._meter.edges[peer.edge]
            cursor = EdgeCursor(target, self._connector.max_chunk_bytes, meter)
            cursors[self._consumers[peer.edge]] = cursor
        self._meter.open_lane(start.client_address, start.api_server)
        self._routes[start.request_id] = _Route(start, cursors, client_ended=not start.client_address)
        self._reach_client(start)
        return frozenset(cursors)

    def _reach_client(self, start: StartRequest) -> None:
        """Fail a request whose outputs would wait here for a descriptor; its end is told on the control lane, too."""
        if start.client_address:
            try:
                self._outlet.reach(start.client_address)
            except NoDescriptorError as error:
                self._failed[start.request_id] = StageError(f"{self._replica}: {start.request_id}: {error.message}")

    def route(self, request_id: str, output: StageOutput) -> None:
        """Forward one step's output; UndeclaredOutputError (nothing was forwarded) if it is not as declared.

        Payload for a consumer or client lane that this request has not bound is dropped.
        """
        route = self._routes[request_id]
        self._check(route, output)
        for consumer, arrays in output.handoff.items():
            cursor = route.cursors.get(consumer)
            if cursor is not None and cursor.takes_rows:
                if consumer in output.first_rows:
                    cursor.replay_from(output.first_rows[consumer])
                if self._whole_keys.isdisjoint(arrays):
                    cursor.append(arrays, {})
                else:
                    cursor.append(*self._by_layout(arrays))
        if output.client and not route.client_ended:
            self._to_client(request_id, route, output.client)
        if output.finished:
            self._finish(request_id, route, output)
        if route.cursors and (output.handoff or output.finished):
            self._unsent[request_id] = route

    def fail(self, request_id: str, error: AntiphonError, flag: ChunkFlag = ChunkFlag.ERROR) -> None:
        """End every lane of the request with `error`, except those that have ended."""
        route = self._routes[request_id]
        for cursor in route.cursors.values():
            if not cursor.is_closed:
                cursor.fail(flag, to_info(error))
        self._end_client(request_id, route, OutputError(to_info(error)))
        self._unsent[request_id] = route

    def flush(self) -> dict[str, bool]:
        """Put what is due on every edge. Gives request -> waits for credit, for those that had something to put."""
        if not self._unsent and not self._was_waiting:
            return {}
        blocked, waiting = {}, set[str]()
        for request_id, route in self._unsent.items():
            try:
                refused = [c.target.edge for c in route.cursors.values() if not c.flush(self._connector)]
            except StageError as error:  # what the connector cannot carry ends its request, not the stage
                self._failed[request_id], refused = error, []
            blocked[request_id] = bool(refused)
            if refused:
                waiting.update(refused)
        self._unsent = {name: route for name, route in self._unsent.items() if blocked[name]}
        if waiting or self._was_waiting:
            self._meter.note_waiting(waiting, time.monotonic())
            self._was_waiting = bool(waiting)
        return blocked

    def send(self) -> None:
        """Send what final stages have said, one frame per api-server; of each request, deltas in a row are joined."""
        if not self._unsaid:
            return
        frames: defaultdict[str, list[Addressed]] = defaultdict(list)
        for request_id, route in self._unsaid.items():
            said, route.said = joined(route.said), []
            frames[route.start.client_address].append(Addressed(request_id, route.start.epoch, said))
        self._unsaid.clear()
        now_s = time.monotonic()
        for address, addressed in frames.items():
            num_sent = self._meter.num_sent(address) + num_outputs(addressed)
            frame = ClientFrame(self._replica, addressed, num_sent, now_s)
            try:
                self._outlet.send(address, frame)
                self._meter.sent(address, frame)
            except ChannelFullError as error:
                self._lose(addressed, error)

    def failures(self, now_s: float) -> dict[str, AntiphonError]:
        """Request -> why it cannot go on: rows that cannot travel, no credit in deadline_s, a full client lane."""
        failed, self._failed = self._failed, {}
        for request_id, route in self._unsent.items():
            for cursor in route.cursors.values():
                if cursor.waited_s(now_s) > self._deadlines_s[cursor.target.edge]:
                    failed[request_id] = self._no_credit(route, cursor)
        return failed

    def forget_peer(self, address: str, client_address: str = "") -> None:
        """The process behind these addresses has ended: nothing more is sent to it, and what it held comes back."""
        for route in self._routes.values():
            for cursor in route.cursors.values():
                if cursor.target.address == address:
                    cursor.abandon()
            if route.start.client_address == client_address:
                route.client_ended = True
                route.said.clear()
                self._unsaid.pop(route.start.request_id, None)  # sent, it would open a connection that nothing closes
        self._connector.forget_peer(address)
        self._outlet.forget(client_address)
        self._meter.close_lane(client_address)

    def counters(self) -> list[Counter]:
        """What has been sent on every edge and client lane, for the monitor."""
        return self._meter.counters(self._replica, self._connector.statistics().oldest_unreleased_s)

    def is_drained(self, request_id: str) -> bool:
        """True if every lane has ended, all that failed here is told, and no consumer holds anything of it."""
        if request_id in self._unsaid or request_id in self._failed:
            return False
        route = self._routes[request_id]
        closed = route.client_ended and all(cursor.is_closed for cursor in route.cursors.values())
        return closed and self._connector.num_held(request_id) == 0

    def close(self, request_id: str) -> None:
        """Forget a drained request."""
        del self._routes[request_id]
        self._unsent.pop(request_id, None)

    def _finish(self, request_id: str, route: _Route, output: StageOutput) -> None:
        for cursor in route.cursors.values():
            cursor.finish()
        self._end_client(request_id, route, OutputEnd(output.finish_reason, output.usage))

    def _end_client(self, request_id: str, route: _Route, end: OutputEnd | OutputError) -> None:
        if not route.client_ended:
            self._to_client(request_id, route, (end,))
            route.client_ended = True

    def _to_client(self, request_id: str, route: _Route, outputs: Sequence[ClientOutput]) -> None:
        route.said += outputs
        self._unsaid[request_id] = route

    def _lose(self, lost: list[Addressed], error: AntiphonError) -> None:
        """These outputs will never arrive; what followed them would make a gap, so their requests end here."""
        for addressed in lost:
            request_id = addressed.request_id
            self._routes[request_id].client_ended = True
            self._failed[request_id] = StageError(f"{self._replica}: {request_id}: {error.message}")

    def _no_credit(self, route: _Route, cursor: EdgeCursor) -> HandoffTimeoutError:
        target = cursor.target
        consumer = next(peer.replica for peer in route.start.consumers if peer.edge == target.edge)
        return HandoffTimeoutError(
            f"{target.edge}: {target.producer} waited {self._deadlines_s[target.edge]:g} s for room for chunk "
            f"{cursor.next_seq} of {target.request_id}, which {consumer} gives; raise edges.{target.edge}.deadline_s "
            f"or connector.arena_mib, or see {consumer}'s log"
        )

    def _by_layout(self, arrays: Arrays) -> tuple[Arrays, Arrays]:
        whole = {key: array for key, array in arrays.items() if key in self._whole_keys}
        return {key: array for key, array in arrays.items() if key not in whole}, whole

    def _check(self, route: _Route, output: StageOutput) -> None:
        request_id = route.start.request_id
        problem = problem_of_form(output)
        if problem:
            raise self._malformed(request_id, problem)
        for consumer, arrays in output.handoff.items():
            first_rows = route.row_forms.get(consumer)
            if first_rows is None or not has_form(arrays, first_rows):
                self._check_handoff(route, consumer, arrays)
        for data in output.client:
            if type(data) not in self._client_types:
                expected = f"one of {sorted(self._spec.client_kinds)} on the client lane"
                raise self._undeclared(request_id, type(data).__name__, expected)
            problem = problem_of(data)
            if problem:
                raise self._undeclared(request_id, problem, "what the message declares")

    def _check_handoff(self, route: _Route, consumer: str, arrays: Arrays) -> None:
        request_id, edge = route.start.request_id, self._edges.get(consumer)
        if edge is None:
            raise self._undeclared(request_id, f"handed off to {consumer!r}", f"one of {sorted(self._edges)}")
        if not isinstance(arrays, dict):
            raise self._malformed(request_id, "handoff is no dict of dicts")
        lengths: dict[str, int] = {}
        form: RowForm = {}
        for key, array in arrays.items():
            declared = self._declared.get(key)
            if declared is None:
                raise UndeclaredOutputError(
                    f"stage {self._spec.name} made {key!r}, which it does not declare; "
                    f"it declares {', '.join(self._declared) or 'nothing'}"
                )
            if key not in edge.keys:
                raise self._undeclared(request_id, f"{key!r} on {edge.name}", f"one of {list(edge.keys)}")
            if not isinstance(array, np.ndarray):
                raise self._undeclared(request_id, f"{key!r} as a {type(array).__name__}", "a numpy array")
            declared.check(request_id, self._spec.name, array)
            if not declared.is_whole:
                lengths[key], form[key] = len(array), (array.dtype, array.shape[1:])
        if len(set(lengths.values())) > 1:
            raise self._undeclared(request_id, f"rows {lengths} on {edge.name}", "as many rows of every key")
        first = route.row_forms.setdefault(consumer, form) if form else form
        if form != first:
            got, expected = f"rows of {in_words(form)} on {edge.name}", f"{in_words(first)}, as in its first rows"
            raise self._undeclared(request_id, got, expected)

    def _malformed(self, request_id: str, problem: str) -> UndeclaredOutputError:
        return self._undeclared(request_id, f"an output whose {problem}", "what StageOutput declares")

    def _undeclared(self, request_id: str, got: str, expected: str) -> UndeclaredOutputError:
        return UndeclaredOutputError(f"{self._replica}: {request_id}: got {got}, expected {expected}")
