"""The consumer's side of the inter-stage lane: chunks in order, every wait with a deadline.

In: chunks from the connector. Out: EdgeInputs that fill up, and events: input started, failed.
Does not know: models, scheduling, where chunks come from.
"""

import logging
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from antiphon.config.pipeline import EdgeRule, StartWhen
from antiphon.connector.base import Chunk, Connector
from antiphon.errors import AntiphonError, ChunkGapError, HandoffTimeoutError, StageError
from antiphon.messages.error_info import to_error
from antiphon.messages.interstage import FAILED
from antiphon.stage.request import EdgeInput

log = logging.getLogger(__name__)
_MAX_EARLY_CHUNKS = 4096
_MAX_CLOSED_IDS = 16_384


@dataclass(frozen=True)
class InputStarted:
    """Every in-edge of the request has what its start_when asks for; the engine may have it."""

    request_id: str


@dataclass(frozen=True)
class InputFailed:
    """The request's input will not be complete."""

    request_id: str
    error: AntiphonError


InboxEvent = InputStarted | InputFailed


@dataclass
class _Edge:
    rule: EdgeRule
    producer: str
    input: EdgeInput
    next_seq: int = 0
    last_heard_s: float = 0.0


@dataclass
class _Waiting:
    epoch: int
    edges: dict[str, _Edge]
    started: bool = False


@dataclass
class _Early:
    since_s: float
    chunks: list[Chunk] = field(default_factory=list)


class Inbox:
    """Owns all input of this replica that has arrived and is not consumed: of open requests, and early chunks.

    A chunk of a finished request or an older epoch gives its credit back at once. An early chunk (its
    StartRequest has not come) is kept for `early_deadline_s`; if that comes later still, the request fails at once.
    """

    def __init__(self, connector: Connector, *, early_deadline_s: float) -> None:
        self._connector = connector
        self._early_deadline_s = early_deadline_s
        self._open: dict[str, _Waiting] = {}
        self._early: dict[tuple[str, int], _Early] = {}
        self._num_early = 0
        self._closed_ids: OrderedDict[tuple[str, int], AntiphonError | None] = OrderedDict()
        """Requests whose chunks are not kept: None, or why those that came early were given up."""
        self._events: deque[InboxEvent] = deque()
        self._spent: list[Chunk] = []

    def open(
        self, request_id: str, epoch: int, producers: dict[str, str], rules: dict[str, EdgeRule], now_s: float
    ) -> dict[str, EdgeInput]:
        """Expect a request's input. producers: edge -> replica; rules: edge -> rule. Gives edge -> EdgeInput."""
        edges = {
            edge: _Edge(rules[edge], replica, EdgeInput(self._spent), last_heard_s=now_s)
            for edge, replica in producers.items()
        }
        self._open[request_id] = _Waiting(epoch, edges)
        lost = self._closed_ids.pop((request_id, epoch), None)
        if lost is not None:
            self._fail(request_id, lost)
        early = self._early.pop((request_id, epoch), None)
        if early is not None:
            self._num_early -= len(early.chunks)
            for chunk in early.chunks:
                self._accept(chunk, now_s)
        return {edge: state.input for edge, state in edges.items()}

    def receive(self, now_s: float) -> None:
        """Take in every chunk that has arrived."""
        while (chunk := self._connector.get()) is not None:
            self._accept(chunk, now_s)

    def events(self) -> list[InboxEvent]:
        """What has happened since the last call."""
        events = list(self._events)
        self._events.clear()
        return events

    def end_step(self) -> None:
        """Arrays that models took in this step are not used any more: give their credit back."""
        for chunk in self._spent:
            self._connector.release(chunk)
        self._spent.clear()

    def own_unread(self) -> None:
        """Copy out the input of requests that the engine has not begun on, and give its credit back.

        For a stage that has nothing to do: those requests wait for a place that others hold, who may be waiting for
        rows that their producers have no room for.
        """
        for waiting in self._open.values():
            for edge in waiting.edges.values():
                for chunk in edge.input.own_unread():
                    self._connector.release(chunk)

    def close(self, request_id: str) -> None:
        """The request is over here: give back what is held and whatever still comes."""
        waiting = self._open.pop(request_id, None)
        if waiting is None:
            return
        for edge in waiting.edges.values():
            for chunk in edge.input.drop():
                self._connector.release(chunk)
        self._remember_closed((request_id, waiting.epoch), None)

    def expire(self, now_s: float) -> None:
        """Fail the requests whose input has been silent too long, and drop early chunks nobody asked for."""
        for request_id, waiting in self._open.items():
            for edge in waiting.edges.values():
                silent_s = now_s - edge.last_heard_s
                if not edge.input.ended and not edge.input.num_rows and silent_s > edge.rule.deadline_s:
                    edge.last_heard_s = now_s
                    self._fail(request_id, _timeout(request_id, edge))
        for key in [key for key, early in self._early.items() if now_s - early.since_s > self._early_deadline_s]:
            self._give_up_early(key, f"no StartRequest came within {self._early_deadline_s:g} s of it")

    def num_held(self) -> int:
        """Open requests and early chunks; 0 when idle."""
        return len(self._open) + self._num_early

    def _accept(self, chunk: Chunk, now_s: float) -> None:
        header = chunk.header
        form = header.form
        waiting = self._open.get(form.request_id)
        if waiting is None or form.epoch > waiting.epoch:
            return self._keep_early(chunk, now_s)
        edge = waiting.edges.get(form.edge)
        if form.epoch < waiting.epoch or edge is None or edge.input.ended:
            return self._connector.release(chunk)
        edge.last_heard_s = now_s
        if header.flags & FAILED:
            self._connector.release(chunk)
            edge.input.ended = True
            aborted = StageError(f"{form.producer} aborted {form.request_id}")
            return self._fail(form.request_id, to_error(header.error) if header.error else aborted)
        if header.seq != edge.next_seq:
            self._connector.release(chunk)
            return self._fail(form.request_id, _gap(chunk, edge))
        edge.next_seq += 1
        edge.input.ended = header.is_terminal
        if not waiting.started:
            self._start_if_due(form.request_id, waiting)
        edge.input.add(chunk if waiting.started else self._owned(chunk))

    def _owned(self, chunk: Chunk) -> Chunk:
        """A chunk that lies here until others have come must not hold its producer's memory meanwhile."""
        owned = chunk.owned()
        self._connector.release(chunk)
        return owned

    def _keep_early(self, chunk: Chunk, now_s: float) -> None:
        key = (chunk.header.form.request_id, chunk.header.form.epoch)
        if key in self._closed_ids:
            return self._connector.release(chunk)
        self._early.setdefault(key, _Early(now_s)).chunks.append(chunk)
        self._num_early += 1
        if self._num_early > _MAX_EARLY_CHUNKS:
            self._give_up_early(key, f"{_MAX_EARLY_CHUNKS} chunks wait for StartRequests already")

    def _give_up_early(self, key: tuple[str, int], why: str) -> None:
        early = self._early.pop(key)
        self._num_early -= len(early.chunks)
        for chunk in early.chunks:
            self._connector.release(chunk)
        header = early.chunks[-1].header
        form = header.form
        error = HandoffTimeoutError(
            f"{form.edge}: chunk {header.seq} of {form.request_id} from {form.producer} was given up: {why}; "
            "raise timeouts.early_chunk_s or see the orchestrator's log"
        )
        log.warning("req=%s %s", form.request_id, error.message)
        self._remember_closed(key, error)

    def _remember_closed(self, key: tuple[str, int], why: AntiphonError | None) -> None:
        self._closed_ids[key] = why
        while len(self._closed_ids) > _MAX_CLOSED_IDS:
            self._closed_ids.popitem(last=False)

    def _start_if_due(self, request_id: str, waiting: _Waiting) -> None:
        waiting.started = all(
            edge.input.ended or (edge.rule.start_when is StartWhen.FIRST_CHUNK and edge.next_seq > 0)
            for edge in waiting.edges.values()
        )
        if waiting.started:
            self._events.append(InputStarted(request_id))

    def _fail(self, request_id: str, error: AntiphonError) -> None:
        self._events.append(InputFailed(request_id, error))


def _timeout(request_id: str, edge: _Edge) -> HandoffTimeoutError:
    return HandoffTimeoutError(
        f"{edge.rule.edge}: waited {edge.rule.deadline_s:g} s for chunk {edge.next_seq} of {request_id} "
        f"from {edge.producer}; raise edges.{edge.rule.edge}.deadline_s or see {edge.producer}'s log"
    )


def _gap(chunk: Chunk, edge: _Edge) -> ChunkGapError:
    form = chunk.header.form
    return ChunkGapError(
        f"{form.edge}: chunk {chunk.header.seq} of {form.request_id} came from {form.producer} where {edge.next_seq} "
        "was expected; this is a fault of the connector, not of the request"
    )
