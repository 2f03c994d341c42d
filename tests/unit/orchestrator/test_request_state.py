"""`advance`, under any order of late, doubled and lost events."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.errors import HandoffTimeoutError, ReplicaDiedError
from antiphon.messages.control import RequestFailed, RequestReleased, StageEvent, StageEventKind, StopRequest
from antiphon.messages.error_info import to_error, to_info
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

BOUND = frozenset({"thinker/0", "talker/1", "code2wav/0"})
START = RequestState("req-1", 4, "api-server/0", BOUND, frozenset({"code2wav/0"}))
ERROR = to_info(HandoffTimeoutError("waited too long"))


def failed(replica: str, epoch: int = 4) -> StageEvent:
    return StageEvent("req-1", epoch, replica, StageEventKind.FAILED, ERROR)


def released(replica: str, epoch: int = 4) -> StageEvent:
    return StageEvent("req-1", epoch, replica, StageEventKind.RELEASED)


def run(*events: Event) -> tuple[RequestState, list[Action]]:
    state = START
    actions: list[Action] = []
    for event in events:
        state, more = advance(state, event)
        actions += more
    return state, actions


def told_api_server(actions: list[Action]) -> list[RequestFailed | RequestReleased]:
    return [action.message for action in actions if isinstance(action, TellApiServer)]


def stopped(actions: list[Action]) -> list[str]:
    return [action.replica for action in actions if isinstance(action, TellReplica)]


def freed(actions: list[Action]) -> list[str]:
    return [action.replica for action in actions if isinstance(action, ReplicaReleased)]


REPLICAS = st.sampled_from([*sorted(BOUND), "talker/0", "stranger/9"])
EPOCHS = st.sampled_from([4, 4, 4, 3, 5])
STAGE_EVENTS = st.builds(
    lambda epoch, replica, kind: StageEvent(
        "req-1", epoch, replica, kind, ERROR if kind is StageEventKind.FAILED else None
    ),
    EPOCHS,
    REPLICAS,
    st.sampled_from(StageEventKind),
)
EVENTS = (
    STAGE_EVENTS
    | st.builds(released, REPLICAS)
    | st.builds(ReplicaDied, REPLICAS, st.just("signal 9"))
    | st.builds(Aborted, st.just("gone"))
    | st.just(ApiServerDied())
)


@given(st.lists(EVENTS, max_size=25))
def test_any_order_of_events_keeps_the_promises(events: list[Event]) -> None:
    state = START
    actions: list[Action] = []
    for event in events:
        before = state
        state, more = advance(state, event)
        for action in more:
            if isinstance(action, TellReplica):
                assert action.replica in before.unreleased
                assert action.replica not in freed(actions), "a released replica was told to stop"
                assert action.message.epoch == 4
        actions += more
        if before.phase is Phase.RELEASED:
            assert (state, more) == (before, ())
    told = told_api_server(actions)
    assert sum(isinstance(message, RequestFailed) for message in told) <= 1
    assert len(freed(actions)) == len(set(freed(actions)))
    assert set(freed(actions)) == BOUND - state.unreleased
    assert len(stopped(actions)) == len(set(stopped(actions))), "stopped once"
    assert told.count(RequestReleased("req-1")) == (1 if not state.unreleased else 0)
    assert (state.phase is Phase.RELEASED) is (not state.unreleased)
    if state.phase is Phase.RELEASED:
        assert told[-1] == RequestReleased("req-1")
    assert (state.request_id, state.epoch) == ("req-1", 4)


@given(st.lists(EVENTS, max_size=25), st.permutations(sorted(BOUND)))
def test_a_request_ends_when_all_its_replicas_have_said_released_whatever_came_before(
    events: list[Event], order: list[str]
) -> None:
    state, actions = run(*events, *map(released, order))
    assert state.phase is Phase.RELEASED
    assert sorted(freed(actions)) == sorted(BOUND)
    assert told_api_server(actions).count(RequestReleased("req-1")) == 1


def test_a_request_that_goes_well_tells_its_end_only() -> None:
    state, actions = run(released("thinker/0"), released("talker/1"))
    assert state == replace(START, unreleased=frozenset({"code2wav/0"}))
    assert actions == [ReplicaReleased("thinker/0"), ReplicaReleased("talker/1")]
    assert advance(state, released("code2wav/0"))[1] == (
        ReplicaReleased("code2wav/0"),
        TellApiServer(RequestReleased("req-1")),
    )


def test_a_failure_is_told_once_and_stops_the_others() -> None:
    state, actions = run(released("thinker/0"), failed("talker/1"), failed("code2wav/0"), Aborted("gone"))
    assert state.phase is Phase.ENDING
    assert told_api_server(actions) == [RequestFailed("req-1", ERROR)]
    assert stopped(actions) == ["code2wav/0"]


def test_a_failure_after_an_abort_is_not_told() -> None:
    state, actions = run(Aborted("its client has gone"), failed("talker/1"))
    assert state.phase is Phase.ENDING
    assert told_api_server(actions) == []
    assert actions == [TellReplica(name, StopRequest("req-1", 4, "its client has gone")) for name in sorted(BOUND)]


def test_a_dead_replica_fails_the_request_and_counts_as_released() -> None:
    state, actions = run(ReplicaDied("talker/1", "signal 9"), ReplicaDied("talker/1", "signal 9"))
    assert state.unreleased == {"thinker/0", "code2wav/0"}
    assert freed(actions) == ["talker/1"]
    assert stopped(actions) == ["code2wav/0", "thinker/0"]
    (failure,) = told_api_server(actions)
    assert isinstance(failure, RequestFailed)
    error = to_error(failure.error)
    assert isinstance(error, ReplicaDiedError)
    assert "talker/1 died (signal 9) while it served req-1" in error.message


def test_a_replica_that_dies_after_its_part_fails_nothing() -> None:
    before, _ = run(released("talker/1"))
    assert advance(before, ReplicaDied("talker/1", "signal 9")) == (before, ())


def test_an_event_of_another_epoch_changes_nothing() -> None:
    assert run(released("talker/1", epoch=3), failed("talker/1", epoch=5)) == (START, [])


def test_the_death_of_the_api_server_stops_every_replica() -> None:
    state, actions = run(ApiServerDied())
    assert stopped(actions) == sorted(BOUND)
    assert told_api_server(actions) == []
    assert state.phase is Phase.ENDING
