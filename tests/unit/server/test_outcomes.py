"""What a request came to, as every api-server of a run directory tells it."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from antiphon.errors import ReplicaDiedError
from antiphon.ids import RequestId
from antiphon.messages.client import Usage
from antiphon.server import outcomes
from antiphon.server.edge import RequestIds
from antiphon.server.outcomes import Outcome, OutcomeLog, Status

FIRST = RequestIds(RequestId("req-1"), "mine")


@pytest.fixture
def log(tmp_path: Path) -> OutcomeLog:
    return OutcomeLog(tmp_path, "api-server/0")


def found(log: OutcomeLog, wanted_id: str) -> Outcome:
    outcome = log.find(wanted_id)
    assert outcome is not None
    return outcome


def follow(log: OutcomeLog, own_id: str, shown_id: str = "") -> None:
    with log.following(RequestIds(RequestId(own_id), shown_id or own_id)):
        pass


def test_a_request_is_in_progress_until_it_is_complete(log: OutcomeLog) -> None:
    with log.following(FIRST) as made:
        assert found(log, "mine").status is Status.IN_PROGRESS
        made.usage, made.duration_s = Usage(3, 4), 1.5
    assert found(log, "mine").answer == {
        "id": "mine",
        "object": "audio.speech",
        "status": "completed",
        "usage": {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7},
        "duration_s": 1.5,
        "error": None,
    }


def test_a_failure_is_told_with_its_envelope_and_what_was_made_before(log: OutcomeLog) -> None:
    with suppress(ReplicaDiedError), log.following(FIRST) as made:
        made.duration_s = 0.5
        raise ReplicaDiedError("code2wav/0 died")
    answer = found(log, "req-1").answer
    assert (answer["status"], answer["usage"], answer["duration_s"]) == ("failed", None, 0.5)
    assert answer["error"] == {
        "message": "code2wav/0 died",
        "type": "server_error",
        "param": None,
        "code": "replica_died",
    }


def test_a_fault_of_ours_says_nothing_of_the_inside(log: OutcomeLog) -> None:
    with pytest.raises(ValueError, match="secret"), log.following(FIRST):
        raise ValueError("secret")
    outcome = found(log, "mine")
    assert outcome.status is Status.FAILED and outcome.error is not None
    assert "req-1" in str(outcome.error["message"]) and "secret" not in str(outcome.error)


def test_any_api_server_of_the_run_directory_knows_it(log: OutcomeLog, tmp_path: Path) -> None:
    follow(log, "req-1")
    follow(other := OutcomeLog(tmp_path, "api-server/1"), "req-2")
    assert found(log, "req-2").own_id == "req-2"
    assert found(other, "req-1").own_id == "req-1"


def test_the_newest_of_one_clients_id_counts_and_nobody_takes_an_id_of_ours(log: OutcomeLog) -> None:
    follow(log, "req-1", "mine")
    follow(log, "req-2", "mine")
    follow(log, "req-3", "req-1")
    assert found(log, "mine").own_id == "req-2"
    assert found(log, "req-1").shown_id == "mine"


@pytest.mark.parametrize("wanted_id", ["", "req", "req-", "eq-1", 'req-1","shown_id":"req-1', "completed", "\ufffd"])
def test_what_is_no_whole_id_is_not_found(log: OutcomeLog, wanted_id: str) -> None:
    follow(log, "req-1")
    assert log.find(wanted_id) is None


def test_old_requests_are_forgotten_and_the_files_stay_small(log: OutcomeLog, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(outcomes, "_MAX_LINES", 10)
    for number in range(100):
        follow(log, f"req-{number}")
    assert found(log, "req-99").status is Status.COMPLETED
    assert log.find("req-85") is None
    assert sum(len(path.read_bytes().splitlines()) for path in tmp_path.iterdir()) <= 20
    monkeypatch.setattr(outcomes, "_KEPT_S", 0.0)
    assert log.find("req-99") is None


def test_a_request_whose_api_server_has_died_has_failed(log: OutcomeLog, tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from antiphon.server.edge import RequestIds;"
        "from antiphon.server.outcomes import OutcomeLog;"
        "request = OutcomeLog(Path(sys.argv[1]), 'api-server/1').following(RequestIds('req-9', 'req-9'));"
        "request.__enter__(); os._exit(1)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=60).returncode == 1
    outcome = found(log, "req-9")
    assert outcome.status is Status.FAILED and outcome.error is not None
    assert "died" in str(outcome.error["message"])


def test_a_disk_that_takes_nothing_does_not_fail_the_request(tmp_path: Path) -> None:
    log = OutcomeLog(tmp_path / "gone", "api-server/0")
    follow(log, "req-1")
    assert log.find("req-1") is None
