"""Admission: who runs, who waits, who is sent away and for how long."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.config.pipeline import Modality
from antiphon.errors import OverloadedError
from antiphon.messages.control import SubmitRequest
from antiphon.messages.params import RequestParams
from antiphon.orchestrator.admission import Admission
from antiphon.orchestrator.service_rate import ServiceRate


def request(name: str, api_server: str = "api-server/0", client: str = "") -> SubmitRequest:
    text = frozenset({Modality.TEXT})
    return SubmitRequest(name, api_server, "chat", text, text, RequestParams(), client=client)


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


class Clock:
    """The time, as a test sets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr("antiphon.orchestrator.service_rate.time.monotonic", lambda: self.now_s)


@pytest.mark.parametrize(
    ("step_s", "num_queued", "wait_s"), [(2.0, 3, 8.0), (0.01, 3, 1.0), (100.0, 3, 60.0), (5.0, 0, 5.0)]
)
def test_the_time_to_wait_is_the_queues_and_one_more_at_the_rate_of_releases(
    monkeypatch: pytest.MonkeyPatch, step_s: float, num_queued: int, wait_s: float
) -> None:
    clock = Clock(monkeypatch)
    admission = Admission(max_inflight=1, max_queue=num_queued)
    for _ in range(5):
        admission.submit(request("fast"))
        admission.admit_next()
        clock.now_s += step_s
        admission.released()
        clock.now_s += 3600.0  # an idle hour says nothing about the rate
    for name in ("running", *"xyz"[:num_queued]):
        admission.submit(request(name))
        admission.admit_next()
    with pytest.raises(OverloadedError) as raised:
        admission.submit(request("late"))
    assert raised.value.retry_after_s == pytest.approx(wait_s)


def test_the_rate_counts_requests_that_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    rate = ServiceRate()
    assert rate.per_s() == 0
    for _ in range(100):
        rate.begins()
    for _ in range(100):
        clock.now_s += 0.25
        rate.ends()
    assert rate.per_s() == pytest.approx(4.0)


def test_a_server_that_stands_still_becomes_slower_by_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    rate = ServiceRate()
    rate.begins()
    rate.begins()
    clock.now_s += 1.0
    rate.ends()
    assert rate.per_s() == pytest.approx(1.0)
    clock.now_s += 3.0
    assert rate.per_s() == pytest.approx(0.25)


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


def of(client: str, *numbers: int) -> list[SubmitRequest]:
    return [request(f"{client}{number}", client=client) for number in numbers]


def submit_all(admission: Admission, requests: list[SubmitRequest]) -> None:
    for each in requests:
        admission.submit(each)


def test_clients_take_turns_each_with_its_oldest_request() -> None:
    admission = Admission(max_inflight=99, max_queue=99)
    submit_all(admission, [*of("a", 1, 2, 3, 4), *of("b", 1, 2), *of("c", 1)])
    assert admitted(admission) == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_a_client_with_one_request_waits_for_its_turn_and_not_for_fifty_others() -> None:
    admission = Admission(max_inflight=10, max_queue=99)
    submit_all(admission, of("greedy", *range(50)))
    assert len(admitted(admission)) == 10
    submit_all(admission, of("modest", 1))
    admission.released()
    admission.released()
    assert "modest1" in admitted(admission)


def test_in_a_full_queue_the_newest_request_of_the_client_that_has_most_gives_up_its_place() -> None:
    admission = Admission(max_inflight=1, max_queue=4)
    submit_all(admission, of("a", 0))
    assert admitted(admission) == ["a0"]
    submit_all(admission, [*of("a", 1, 2, 3), *of("b", 1)])
    displaced = admission.submit(request("c1", client="c"))
    assert displaced is not None and displaced.request_id == "a3"
    assert admission.num_queued == 4
    for client in "abc":  # nobody has two less than another one now
        with pytest.raises(OverloadedError):
            admission.submit(request("late", client=client))
    admission.released()
    assert admitted(admission) == ["a1"]


def test_no_place_is_taken_from_a_request_that_is_started_again() -> None:
    admission = Admission(max_inflight=1, max_queue=2)
    submit_all(admission, of("a", 0))
    assert admitted(admission) == ["a0"]
    for each in of("a", 1, 2):
        admission.resubmit(each)
    with pytest.raises(OverloadedError):
        admission.submit(request("b1", client="b"))
    for expected in ("a1", "a2"):  # in the order in which they lost their places
        admission.released()
        assert admitted(admission) == [expected]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_news_foretell_exactly_who_is_refused_and_nothing_is_lost(steps: list[tuple[str, bool]]) -> None:
    admission, waiting = Admission(max_inflight=2, max_queue=5), dict[str, str]()
    for number, (client, releases) in enumerate(steps):
        if releases and admission.num_inflight:
            admission.released()
        name, most = f"{client}{number}", admission.news().max_waiting
        num_waiting = list(waiting.values()).count(client)
        try:
            displaced = admission.submit(request(name, client=client))
        except OverloadedError:
            assert most is not None and num_waiting >= most
        else:
            assert most is None or num_waiting < most
            waiting[name] = client
            if displaced is not None:
                del waiting[displaced.request_id]
        for started in admitted(admission):
            del waiting[started]
        assert admission.num_inflight <= 2
        assert admission.num_queued == len(waiting) <= 5
