"""Admission: who runs, who waits, who is sent away and for how long."""

import pytest

from antiphon.config.pipeline import Modality
from antiphon.errors import OverloadedError
from antiphon.messages.control import SubmitRequest
from antiphon.messages.params import RequestParams
from antiphon.orchestrator.admission import Admission


def request(name: str, api_server: str = "api-server/0") -> SubmitRequest:
    text = frozenset({Modality.TEXT})
    return SubmitRequest(name, api_server, "chat", text, text, RequestParams())


def admitted(admission: Admission) -> list[str]:
    names = []
    while (found := admission.admit_next()) is not None:
        names.append(found.request_id)
    return names


def test_requests_run_in_the_order_they_came_as_places_come_free() -> None:
    admission = Admission(max_inflight=2, max_queue=3)
    for name in "abcde":
        admission.submit(request(name))
    assert admitted(admission) == ["a", "b"]
    assert (admission.num_inflight, admission.num_queued) == (2, 3)
    admission.released()
    assert admitted(admission) == ["c"]
    admission.released()
    admission.released()
    assert admitted(admission) == ["d", "e"]


def test_a_request_beyond_the_queue_is_refused_with_the_counts() -> None:
    admission = Admission(max_inflight=1, max_queue=1)
    admission.submit(request("a"))
    assert admitted(admission) == ["a"]
    admission.submit(request("b"))
    with pytest.raises(OverloadedError, match="1 requests run and 1 wait; try again in 1 s") as raised:
        admission.submit(request("c"))
    assert raised.value.retry_after_s == 1.0
    assert admission.num_queued == 1


def test_without_a_queue_requests_still_run() -> None:
    admission = Admission(max_inflight=1, max_queue=0)
    admission.submit(request("a"))
    assert admitted(admission) == ["a"]
    with pytest.raises(OverloadedError):
        admission.submit(request("b"))
    admission.released()
    admission.submit(request("b"))
    assert admitted(admission) == ["b"]


@pytest.mark.parametrize(("step_s", "num_queued", "wait_s"), [(2.0, 3, 6.0), (0.01, 3, 1.0), (100.0, 3, 60.0)])
def test_the_time_to_wait_is_the_queues_at_the_rate_of_releases(
    monkeypatch: pytest.MonkeyPatch, step_s: float, num_queued: int, wait_s: float
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("antiphon.orchestrator.admission.time.monotonic", lambda: now_s)
    admission = Admission(max_inflight=1, max_queue=num_queued)
    for _ in range(5):
        admission.submit(request("fast"))
        admission.admit_next()
        admission.released()
        now_s += step_s
    now_s -= step_s
    for name in ("running", *"xyz"):
        admission.submit(request(name))
        admission.admit_next()
    with pytest.raises(OverloadedError) as raised:
        admission.submit(request("late"))
    assert raised.value.retry_after_s == pytest.approx(wait_s)


def test_a_waiting_request_can_be_withdrawn_once() -> None:
    admission = Admission(max_inflight=1, max_queue=5)
    for name in "abc":
        admission.submit(request(name))
    assert admitted(admission) == ["a"]
    assert admission.is_queued("b") and not admission.is_queued("a")
    assert admission.withdraw("b") == request("b")
    assert admission.withdraw("b") is None
    assert admission.withdraw("a") is None
    admission.released()
    assert admitted(admission) == ["c"]


def test_the_waiting_requests_of_one_api_server_are_withdrawn_together() -> None:
    admission = Admission(max_inflight=9, max_queue=9)
    for index, name in enumerate("abcd"):
        admission.submit(request(name, f"api-server/{index % 2}"))
    admission.withdraw_all_of("api-server/1")
    assert admitted(admission) == ["a", "c"]


def test_the_most_that_waited_are_told_once_and_those_admitted_at_once_never_waited() -> None:
    admission = Admission(max_inflight=2, max_queue=3)
    for name in "ab":
        admission.submit(request(name))
        admitted(admission)
    assert admission.take_max_queued() == 0
    for name in "cde":
        admission.submit(request(name))
        admitted(admission)
    admission.released()
    assert admitted(admission) == ["c"]
    assert (admission.take_max_queued(), admission.num_queued) == (3, 2)
    assert admission.take_max_queued() == 2
