"""The control lane: a few small messages per stage and request, between api-server, orchestrator and replicas.

In: facts about a request's life. Out: one closed union per direction.
Does not know: tokens, tensors, audio.
"""

from enum import StrEnum

import msgspec

from antiphon.config.pipeline import Modality
from antiphon.errors import OverloadedError
from antiphon.messages.error_info import ErrorInfo
from antiphon.messages.params import RequestParams

MAX_MESSAGE_BYTES = 64 * 1024
"""The orchestrator cuts off who sends it a larger one. What grows with the deployment goes in parts."""


class SubmitRequest(msgspec.Struct, frozen=True, tag="submit"):
    """api-server -> orchestrator: admit this request and bind it. Its input follows on the inter-stage lane.

    epoch: the number of this start, higher than that of every earlier start of the same id. is_restart: it had a place
    and has lost it with a replica, `ran_s` after it was bound; it goes to the head of the queue. client: who asks for
    it, as an opaque name: those of one name share one line of the queue.
    """

    request_id: str
    api_server: str
    task: str
    inputs: frozenset[Modality]
    outputs: frozenset[Modality]
    params: RequestParams
    epoch: int = 0
    is_restart: bool = False
    client: str = ""
    ran_s: float = 0.0


class AbortRequest(msgspec.Struct, frozen=True, tag="abort"):
    """api-server -> orchestrator: stop this request everywhere. Unknown or ended ids are ignored."""

    request_id: str
    reason: str


class RequestAccepted(msgspec.Struct, frozen=True, tag="accepted"):
    """orchestrator -> api-server: bound. Send the input to `entry_address` (inter-stage lane)."""

    request_id: str
    epoch: int
    entry_replica: str
    entry_address: str
    finals: tuple[str, ...]


class RequestRejected(msgspec.Struct, frozen=True, tag="rejected"):
    """orchestrator -> api-server: not admitted; nothing was bound."""

    request_id: str
    error: ErrorInfo


class RequestFailed(msgspec.Struct, frozen=True, tag="failed"):
    """orchestrator -> api-server: an accepted request will not finish."""

    request_id: str
    error: ErrorInfo


class RequestReleased(msgspec.Struct, frozen=True, tag="released"):
    """orchestrator -> api-server: every bound replica has released the request; its id is free."""

    request_id: str


ADMISSION_NEWS_S = 3.0
"""How long the orchestrator's word about admission holds; while there is no room it repeats it every second."""


class AdmissionNews(msgspec.Struct, frozen=True, tag="admission"):
    """orchestrator -> api-servers: what a new request would meet, said whenever there is room no more, or again.

    max_waiting: a client of which so many requests wait is refused, any other is not; None = there is room for all.
    """

    num_inflight: int
    num_queued: int
    max_waiting: int | None
    retry_after_s: float

    def refusal(self) -> OverloadedError:
        """What the client is told."""
        return OverloadedError(
            f"{self.num_inflight} requests run and {self.num_queued} wait; try again in {self.retry_after_s:.0f} s",
            retry_after_s=self.retry_after_s,
        )


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """The other end of an edge: replica and its connector's address."""

    edge: str
    replica: str
    address: str


class StartRequest(msgspec.Struct, frozen=True, tag="start"):
    """orchestrator -> replica: a request is bound to you. api_server: the one that owns it."""

    request_id: str
    epoch: int
    task: str
    params: RequestParams
    producers: tuple[Peer, ...]
    consumers: tuple[Peer, ...]
    client_address: str
    """The api-server's client-lane address if this stage is final for the request, else "". """
    api_server: str = ""


class StopRequest(msgspec.Struct, frozen=True, tag="stop"):
    """orchestrator -> replica: stop this request and say `released`.

    error: what ended it elsewhere, which this replica's lanes shall say too; None if it was aborted for `reason`.
    """

    request_id: str
    epoch: int
    reason: str
    error: ErrorInfo | None = None


class StageEventKind(StrEnum):
    """FAILED: the stage failed the request; `error` says why.

    RELEASED: its part is over, and no consumer holds memory of it: this replica holds nothing of it any more.
    """

    FAILED = "failed"
    RELEASED = "released"


class StageEvent(msgspec.Struct, frozen=True, tag="event"):
    """replica -> orchestrator: a step in a request's life in one stage."""

    request_id: str
    epoch: int
    replica: str
    kind: StageEventKind
    error: ErrorInfo | None = None


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """replica or api-server -> orchestrator: I am up; here is where I hear you. pid: this process; 0 = do not watch."""

    name: str
    control_address: str
    connector_address: str = ""
    client_address: str = ""
    pid: int = 0


class Leaving(msgspec.Struct, frozen=True, tag="leaving"):
    """replica or api-server -> orchestrator: I shall end. A replica is bound no more, and hears Leave when it may."""

    name: str


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """orchestrator -> replica: nothing is bound to you and nothing will be; end."""


class Joined(msgspec.Struct, frozen=True, tag="joined"):
    """orchestrator -> replica: you are in your stage's pool; requests may be bound to you from now on."""


class PeerDied(msgspec.Struct, frozen=True, tag="peer_died"):
    """orchestrator -> replicas, api-servers: the process `name` behind these addresses has ended; it releases nothing.

    It follows the StopRequests of what was bound to it, so that nobody puts to it any more.
    """

    name: str
    connector_address: str
    client_address: str = ""


class Counter(msgspec.Struct, frozen=True, array_like=True):
    """One number of a process: metric name, labels, value."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


STATS_INTERVAL_S = 1.0
"""How often every process reports what it has counted."""


class StatsReport(msgspec.Struct, frozen=True, tag="stats"):
    """replica or api-server -> orchestrator -> api-servers: the counters of one process, or of the pools.

    Names are those of monitor/families.py. It is part `number` of `num_parts`, from 0 on (messages/report_parts.py).
    """

    source: str
    counters: tuple[Counter, ...]
    number: int = 0
    num_parts: int = 1


ToOrchestrator = SubmitRequest | AbortRequest | StageEvent | Ready | Leaving | StatsReport
ToReplica = Joined | StartRequest | StopRequest | PeerDied | Leave
ToApiServer = (
    RequestAccepted | RequestRejected | RequestFailed | RequestReleased | AdmissionNews | PeerDied | StatsReport
)
