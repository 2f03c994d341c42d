"""How requests ended: every way has its outcome, and a stop counts as acknowledged when all replicas have let go."""

import pytest

from antiphon.errors import StageError
from antiphon.messages.control import StageEvent, StageEventKind
from antiphon.messages.error_info import to_info
from antiphon.orchestrator.request_state import Aborted, ApiServerDied, ReplicaDied
from antiphon.orchestrator.tally import Outcome, ProcessTally, RequestTally

FAILED = StageEvent("req-1", 0, "talker/0", StageEventKind.FAILED, to_info(StageError("no")))
RELEASED = StageEvent("req-1", 0, "talker/0", StageEventKind.RELEASED)


def counted(tally: RequestTally | ProcessTally) -> dict[str, float]:
    return {"/".join((each.name, *(value for _, value in each.labels))): each.value for each in tally.counters()}


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (FAILED, "failed"),
        (Aborted("gone"), "aborted"),
        (ApiServerDied(), "aborted"),
        (ReplicaDied("talker/0", "SIGKILL"), "replica_died"),
    ],
)
def test_a_request_that_is_stopped_is_pending_until_it_is_released(event, outcome):
    tally = RequestTally()
    tally.bound("req-1", "speech")
    tally.stopped("req-1", event)
    assert counted(tally) == {"aborts_pending": 1, "aborts_acknowledged_total": 0}
    tally.released("req-1")
    assert counted(tally) == {
        f"requests_total/speech/{outcome}": 1,
        "aborts_pending": 0,
        "aborts_acknowledged_total": 1,
    }


def test_a_request_that_ends_by_itself_is_finished_and_never_an_abort():
    tally = RequestTally()
    tally.bound("req-1", "speech")
    tally.stopped("req-1", RELEASED)
    tally.released("req-1")
    tally.rejected("chat", Outcome.REJECTED)
    assert counted(tally) == {
        "requests_total/speech/finished": 1,
        "requests_total/chat/rejected": 1,
        "aborts_pending": 0,
        "aborts_acknowledged_total": 0,
    }


def test_only_a_process_that_comes_back_after_a_death_has_restarted():
    tally = ProcessTally()
    tally.joined("talker/0")
    tally.joined("talker/0")
    assert counted(tally) == {}
    tally.died("talker/0")
    assert counted(tally) == {"replica_deaths_total/talker/0": 1, "replica_restarts_total/talker/0": 0}
    tally.joined("talker/0")
    tally.joined("talker/0")
    assert counted(tally)["replica_restarts_total/talker/0"] == 1
