"""How requests ended and how often processes died, counted from the start.

In: what the orchestrator does with requests and members. Out: Counters. Does not know: states, sockets.
"""

from collections import Counter as Tally
from collections.abc import Iterator
from enum import StrEnum
from typing import assert_never

from antiphon.messages.control import Counter, StageEvent, StageEventKind
from antiphon.orchestrator.request_state import Aborted, ApiServerDied, Event, ReplicaDied


class Outcome(StrEnum):
    """How one start of a request ended."""

    FINISHED = "finished"
    FAILED = "failed"
    REPLICA_DIED = "replica_died"
    ABORTED = "aborted"
    REJECTED = "rejected"


class RequestTally:
    """Owns the counts of ended requests by task and outcome, and the outcome of those that are not released yet."""

    def __init__(self) -> None:
        self._tasks: dict[str, str] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._ended: Tally[tuple[str, Outcome]] = Tally()
        self._num_acknowledged = 0

    def bound(self, request_id: str, task: str) -> None:
        """A request has begun."""
        self._tasks[request_id] = task

    def stopped(self, request_id: str, event: Event) -> None:
        """`event` has ended the request; some replicas may still hold it."""
        self._outcomes[request_id] = _outcome_of(event)

    def released(self, request_id: str) -> None:
        """Every replica has let go of it."""
        outcome = self._outcomes.pop(request_id, Outcome.FINISHED)
        if outcome is not Outcome.FINISHED:
            self._num_acknowledged += 1
        self._ended[self._tasks.pop(request_id), outcome] += 1

    def rejected(self, task: str, outcome: Outcome) -> None:
        """A request was never bound."""
        self._ended[task, outcome] += 1

    def counters(self) -> Iterator[Counter]:
        """Everything."""
        for (task, outcome), count in self._ended.items():
            yield Counter("requests_total", (("task", task), ("outcome", outcome)), float(count))
        pending = sum(outcome is not Outcome.FINISHED for outcome in self._outcomes.values())
        yield Counter("aborts_pending", (), float(pending))
        yield Counter("aborts_acknowledged_total", (), float(self._num_acknowledged))


class ProcessTally:
    """Owns how often each process has died and has come back."""

    def __init__(self) -> None:
        self._deaths: Tally[str] = Tally()
        self._restarts: Tally[str] = Tally()

    def died(self, name: str) -> None:
        """Its process has ended, and nobody had asked it to."""
        self._deaths[name] += 1

    def joined(self, name: str) -> None:
        """It serves: for the first time, or again."""
        if self._deaths[name] > self._restarts[name]:
            self._restarts[name] += 1

    def counters(self) -> Iterator[Counter]:
        """Of every process that has joined so far."""
        for name, count in self._deaths.items():
            yield Counter("replica_deaths_total", (("replica", name),), float(count))
            yield Counter("replica_restarts_total", (("replica", name),), float(self._restarts[name]))


def _outcome_of(event: Event) -> Outcome:
    match event:
        case StageEvent(kind=StageEventKind.FAILED):
            return Outcome.FAILED
        case StageEvent():
            return Outcome.FINISHED
        case Aborted() | ApiServerDied():
            return Outcome.ABORTED
        case ReplicaDied():
            return Outcome.REPLICA_DIED
        case _:
            assert_never(event)
