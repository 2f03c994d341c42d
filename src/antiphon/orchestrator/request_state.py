"""One request's life as a pure function: (state, event) -> (state, actions).

In: what replicas, the api-server and the launcher say of a request. Out: what to send to whom.
Does not know: sockets, clocks, pools.
"""

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from antiphon.errors import DeadlyRequestError, ReplicaDiedError
from antiphon.messages.control import RequestFailed, RequestReleased, StageEvent, StageEventKind, StopRequest
from antiphon.messages.error_info import ErrorInfo, to_info


class Phase(StrEnum):
    """RUNNING: bound and working. ENDING: failed or aborted, waiting for `released`. RELEASED: over; the id is free."""

    RUNNING = "running"
    ENDING = "ending"
    RELEASED = "released"


class RequestState(msgspec.Struct, frozen=True):
    """A bound request. `unreleased` are the bound replicas that have not said `released`.

    last: those that hand nothing on. Their releases wake the orchestrator; those of the others need not.
    """

    request_id: str
    epoch: int
    api_server: str
    unreleased: frozenset[str]
    last: frozenset[str]
    phase: Phase = Phase.RUNNING

    @property
    def is_owed_releases(self) -> bool:
        """True if it is over but for releases that may have been said without hurry: it is time to look for them."""
        return bool(self.unreleased) and self.last.isdisjoint(self.unreleased)


class Aborted(msgspec.Struct, frozen=True):
    """The client, the API or a deadline wants the request to stop."""

    reason: str


class ReplicaDied(msgspec.Struct, frozen=True):
    """A bound replica's process has ended. is_its_doing: this request is the likely cause (see Quarantine)."""

    replica: str
    reason: str
    is_its_doing: bool = False


class ApiServerDied(msgspec.Struct, frozen=True):
    """The api-server that owns the request has ended: nobody waits for it any more."""


Event = StageEvent | Aborted | ReplicaDied | ApiServerDied


class TellReplica(msgspec.Struct, frozen=True):
    """Send `message` to a bound replica."""

    replica: str
    message: StopRequest


class TellApiServer(msgspec.Struct, frozen=True):
    """Send `message` to the api-server that owns the request."""

    message: RequestFailed | RequestReleased


class ReplicaReleased(msgspec.Struct, frozen=True):
    """`replica` holds nothing of the request any more: its place is free."""

    replica: str


Action = TellReplica | TellApiServer | ReplicaReleased


def advance(state: RequestState, event: Event) -> tuple[RequestState, tuple[Action, ...]]:
    """The next state, and what follows from `event`. Late, doubled and unexpected events change nothing."""
    if state.phase is Phase.RELEASED:
        return state, ()
    match event:
        case StageEvent(epoch=epoch, replica=replica) if epoch != state.epoch or replica not in state.unreleased:
            return state, ()
        case StageEvent(kind=StageEventKind.RELEASED, replica=replica):
            return _released(state, replica)
        case StageEvent(kind=StageEventKind.FAILED, replica=replica, error=info) if info is not None:
            failure = TellApiServer(RequestFailed(state.request_id, info))
            return _end(state, f"{replica} failed it", skip=replica, first=(failure,), error=info)
        case StageEvent():
            return state, ()
        case Aborted(reason=reason):
            return _end(state, reason)
        case ApiServerDied():
            return _end(state, "its api-server has died")
        case ReplicaDied(replica=replica):
            return _replica_died(state, replica, _death(state, event))


def _death(state: RequestState, died: ReplicaDied) -> ReplicaDiedError:
    what = f"{died.replica} died ({died.reason}) while it served {state.request_id}"
    if died.is_its_doing:
        again = "alone of those that a death had ended before: it is the likely cause, see the replica's log"
        return DeadlyRequestError(f"{what} {again}")
    return ReplicaDiedError(f"{what}; try again")


def _replica_died(state: RequestState, replica: str, died: ReplicaDiedError) -> tuple[RequestState, tuple[Action, ...]]:
    if replica not in state.unreleased:
        return state, ()
    error = to_info(died)
    failure = TellApiServer(RequestFailed(state.request_id, error))
    ending, actions = _end(state, f"{replica} died", skip=replica, first=(failure,), error=error)
    released, more = _released(ending, replica)
    return released, actions + more


def _end(
    state: RequestState, reason: str, *, skip: str = "", first: tuple[Action, ...] = (), error: ErrorInfo | None = None
) -> tuple[RequestState, tuple[Action, ...]]:
    """Stop the request in every bound replica but `skip`, once."""
    if state.phase is not Phase.RUNNING:
        return state, ()
    stop = StopRequest(state.request_id, state.epoch, reason, error)
    stops = tuple(TellReplica(replica, stop) for replica in sorted(state.unreleased) if replica != skip)
    return replace(state, phase=Phase.ENDING), first + stops


def _released(state: RequestState, replica: str) -> tuple[RequestState, tuple[Action, ...]]:
    unreleased = state.unreleased - {replica}
    freed = ReplicaReleased(replica)
    if unreleased:
        return replace(state, unreleased=unreleased), (freed,)
    ended = replace(state, unreleased=unreleased, phase=Phase.RELEASED)
    return ended, (freed, TellApiServer(RequestReleased(state.request_id)))
