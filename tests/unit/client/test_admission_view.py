"""What an api-server refuses by itself, on the orchestrator's recent word."""

import pytest

from antiphon.client.admission_view import AdmissionView
from antiphon.errors import OverloadedError
from antiphon.messages.control import ADMISSION_NEWS_S, AdmissionNews

FULL = AdmissionNews(num_inflight=2, num_queued=5, max_waiting=2, retry_after_s=7.0)
ROOM = AdmissionNews(num_inflight=2, num_queued=4, max_waiting=None, retry_after_s=6.0)


def test_nobody_is_refused_before_the_first_word() -> None:
    view = AdmissionView()
    for number in range(9):
        view.submitted(f"r{number}", "a")
    view.check("a")


def test_a_client_with_as_many_waiting_requests_is_refused_and_another_one_is_not() -> None:
    view = AdmissionView()
    view.hear(FULL)
    view.submitted("r1", "a")
    view.check("a")
    view.submitted("r2", "a")
    with pytest.raises(OverloadedError, match="2 requests run and 5 wait; try again in 7 s") as raised:
        view.check("a")
    assert raised.value.retry_after_s == 7.0
    view.check("b")


def test_a_request_that_waits_no_more_does_not_count() -> None:
    view = AdmissionView()
    view.hear(FULL)
    view.submitted("r1", "a")
    view.submitted("r2", "a")
    for _ in range(2):
        view.settled("r2")
    view.check("a")
    view.settled("unknown")


def test_nobody_is_refused_when_there_is_room_again() -> None:
    view = AdmissionView()
    view.hear(FULL)
    view.hear(ROOM)
    for number in range(9):
        view.submitted(f"r{number}", "a")
    view.check("a")


def test_an_old_word_refuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 50.0
    monkeypatch.setattr("antiphon.client.admission_view.time.monotonic", lambda: now_s)
    view = AdmissionView()
    view.hear(AdmissionNews(1, 0, 0, 1.0))
    now_s += ADMISSION_NEWS_S
    with pytest.raises(OverloadedError):
        view.check("a")
    now_s += 0.1
    view.check("a")
