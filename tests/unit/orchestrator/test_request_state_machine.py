"""`advance` against a model of the world: replicas that work, fail, die and repeat themselves, in any order.

The machine starts a request, lets everything happen to it, and starts it again with the next epoch as api-servers do.
"""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from antiphon.errors import HandoffTimeoutError
from antiphon.messages.control import RequestFailed, RequestReleased, StageEvent, StageEventKind, StopRequest
from antiphon.messages.error_info import to_info
from antiphon.orchestrator.request_state import (
    Aborted,
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

NAMES = ["thinker/0", "talker/0", "talker/1", "code2wav/0"]
ERROR = to_info(HandoffTimeoutError("waited too long"))
replicas = st.sampled_from(NAMES)
older = st.integers(1, 3)


class OneRequest(RuleBasedStateMachine):
    """Owns the state under test and, apart from it, what the world has done and been told in this epoch."""

    @initialize(bound=st.sets(replicas, min_size=1))
    def begin(self, bound: set[str]) -> None:
        self.epoch = 3
        self.start(bound)

    def start(self, bound: set[str]) -> None:
        self.bound = frozenset(bound)
        self.state = RequestState("req-1", self.epoch, "api-server/0", self.bound, self.bound)
        self.gone: set[str] = set()
        self.has_ended_early = False
        self.stopped: Counter[str] = Counter()
        self.freed: Counter[str] = Counter()
        self.told: list[RequestFailed | RequestReleased] = []

    def happens(self, event: Event) -> None:
        """Deliver one event and check every action against what the world knows."""
        before = self.state
        self.state, actions = advance(self.state, event)
        for action in actions:
            match action:
                case TellReplica(replica=name, message=StopRequest(epoch=epoch)):
                    assert name in self.bound - self.gone, f"{name} holds nothing and was told to stop"
                    assert epoch == self.epoch
                    self.stopped[name] += 1
                case ReplicaReleased(replica=name):
                    assert name in self.gone, f"{name} was freed and holds something"
                    self.freed[name] += 1
                case TellApiServer(message=message):
                    assert RequestReleased("req-1") not in self.told, "the id was free already"
                    self.told.append(message)
        if before.phase is Phase.RELEASED:
            assert (self.state, actions) == (before, ())

    def says(self, replica: str, kind: StageEventKind, epoch: int | None = None) -> None:
        error = ERROR if kind is StageEventKind.FAILED else None
        self.happens(StageEvent("req-1", self.epoch if epoch is None else epoch, replica, kind, error))

    @rule(replica=replicas)
    def a_replica_fails_it(self, replica: str) -> None:
        self.has_ended_early |= replica in self.bound - self.gone
        self.says(replica, StageEventKind.FAILED)

    @rule(replica=replicas)
    def a_replica_releases_it_perhaps_twice(self, replica: str) -> None:
        if replica in self.bound:
            self.gone.add(replica)
        self.says(replica, StageEventKind.RELEASED)

    @rule(replica=replicas)
    def a_replica_dies_perhaps_after_it_was_done(self, replica: str) -> None:
        self.has_ended_early |= replica in self.bound - self.gone
        if replica in self.bound:
            self.gone.add(replica)
        self.happens(ReplicaDied(replica, "signal 9"))

    @rule(
        replica=replicas,
        back=older,
        kind=st.sampled_from(StageEventKind),
    )
    def a_late_word_of_an_older_start_comes(self, replica: str, back: int, kind: StageEventKind) -> None:
        before = self.state
        self.says(replica, kind, self.epoch - back)
        assert self.state == before

    @rule()
    def it_is_aborted_perhaps_twice(self) -> None:
        self.has_ended_early |= bool(self.bound - self.gone)
        self.happens(Aborted("its client has gone"))

    @rule()
    def its_api_server_dies(self) -> None:
        self.has_ended_early |= bool(self.bound - self.gone)
        self.happens(ApiServerDied())

    @precondition(lambda self: self.state.phase is Phase.RELEASED)
    @rule(bound=st.sets(replicas, min_size=1))
    def it_is_started_again(self, bound: set[str]) -> None:
        self.epoch += 1
        self.start(bound)

    @invariant()
    def what_was_promised_holds(self) -> None:
        num_released = self.told.count(RequestReleased("req-1"))
        assert num_released == (1 if self.bound <= self.gone else 0), "told when, and only when, all have let go"
        assert len(self.told) - num_released <= 1, "at most one failure"
        assert self.freed == Counter(self.gone), "each replica's place is given back once, when it has let go"
        assert max(self.stopped.values(), default=0) <= 1
        assert self.state.unreleased == self.bound - self.gone
        if self.bound <= self.gone:
            assert self.state.phase is Phase.RELEASED
        else:
            assert self.state.phase is (Phase.ENDING if self.has_ended_early else Phase.RUNNING)

    @invariant()
    def nobody_works_on_what_has_ended(self) -> None:
        """Everybody who still holds it was told to stop, or was the one that said it had failed."""
        if self.state.phase is Phase.ENDING:
            untold = self.bound - self.gone - set(self.stopped)
            assert len(untold) <= 1


OneRequest.TestCase.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
TestOneRequest = OneRequest.TestCase
