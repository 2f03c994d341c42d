"""One request at a time starts again, shortest first; how long that may take is bounded."""

import math

import pytest

from antiphon.config.pipeline import Modality
from antiphon.messages.control import SubmitRequest
from antiphon.messages.params import RequestParams
from antiphon.orchestrator.quarantine import Quarantine

TEXT = frozenset({Modality.TEXT})
MAX_S = 10.0


def again(request_id: str, ran_s: float, api_server: str = "api-server/0") -> SubmitRequest:
    return SubmitRequest(request_id, api_server, "chat", TEXT, TEXT, RequestParams(), 1, True, "", ran_s)


def names(requests: list[SubmitRequest]) -> list[str]:
    return [request.request_id for request in requests]


@pytest.fixture
def quarantine() -> Quarantine:
    """Of three requests, the second of which ran shortest."""
    quarantine = Quarantine(MAX_S)
    for name, ran_s in (("a", 4.0), ("b", 1.0), ("c", 2.0)):
        quarantine.put(again(name, ran_s), 0.0)
    return quarantine


def test_those_that_had_run_shortest_come_first_and_each_when_the_one_before_is_over(quarantine: Quarantine) -> None:
    order = []
    while quarantine:
        (name,) = names(quarantine.take(0.0))
        quarantine.begins(name, 0.0)
        assert quarantine.take(0.0) == []
        quarantine.over("another")
        assert quarantine.take(0.0) == []
        quarantine.over(name)
        order.append(name)
    assert order == ["b", "c", "a"]
    assert quarantine.take(0.0) == [] and quarantine.due_s == math.inf


def test_a_request_that_has_outlived_its_first_start_holds_nobody_up(quarantine: Quarantine) -> None:
    assert names(quarantine.take(100.0)) == ["b"]
    assert quarantine.due_s == math.inf  # it waits for a replica
    quarantine.begins("b", 200.0)
    assert 201.0 < quarantine.due_s < 202.0
    assert quarantine.take(201.0) == [] and quarantine.is_on_trial("b")
    assert names(quarantine.take(202.0)) == ["c"]
    assert quarantine.is_on_trial("c") and not quarantine.is_on_trial("b")


def test_a_death_in_a_trial_acquits_the_others(quarantine: Quarantine) -> None:
    quarantine.take(0.0)
    quarantine.begins("b", 0.0)
    quarantine.convict()
    assert names(quarantine.take(0.0)) == ["a", "c"]
    quarantine.put(again("d", 1.0), 0.0)
    quarantine.put(again("e", 1.0), 0.0)
    assert names(quarantine.take(0.0)) == ["d"]  # of another death


def test_trials_take_no_longer_than_they_may(quarantine: Quarantine) -> None:
    (slow,) = (quarantine.put(again("slow", 0.5), 0.0), *quarantine.take(0.0))[1:]
    assert slow.request_id == "slow"
    quarantine.begins("slow", 5.0)
    quarantine.take(6.0)
    quarantine.begins("b", 6.0)
    quarantine.take(8.0)
    quarantine.begins("c", 14.0)
    assert quarantine.due_s == 15.0
    assert names(quarantine.take(15.0)) == ["a"]
    assert not quarantine.is_on_trial("a")
    quarantine.over("c")
    quarantine.put(again("d", 1.0), 100.0)
    assert names(quarantine.take(100.0)) == ["d"]
    quarantine.put(again("e", 1.0), 100.0)
    assert quarantine.take(100.0) == []  # the time begins anew


def test_those_of_a_death_that_comes_later_are_tried_too_while_the_last_one_tried_still_runs() -> None:
    quarantine = Quarantine(MAX_S)
    quarantine.put(again("long", 1.0), 0.0)
    assert names(quarantine.take(0.0)) == ["long"]
    quarantine.begins("long", 0.0)
    started = []
    for name in ("killer", "innocent"):
        quarantine.put(again(name, 1.0), 100.0)
        started += names(quarantine.take(100.0))
    assert started == ["killer"]
    quarantine.begins("killer", 100.0)
    assert quarantine.is_on_trial("killer")
    quarantine.convict()
    assert names(quarantine.take(100.5)) == ["innocent"]


def test_a_trial_that_is_not_over_holds_up_those_of_a_later_death_and_its_time_goes_on() -> None:
    quarantine = Quarantine(MAX_S)
    quarantine.put(again("slow", 20.0), 0.0)
    quarantine.take(0.0)
    quarantine.begins("slow", 0.0)
    quarantine.put(again("a", 1.0), 5.0)
    assert quarantine.take(5.0) == [] and quarantine.due_s == MAX_S
    assert names(quarantine.take(MAX_S)) == ["a"]


def test_with_no_time_for_trials_all_start_at_once() -> None:
    quarantine = Quarantine(0.0)
    for name in ("a", "b"):
        quarantine.put(again(name, 1.0), 0.0)
    assert names(quarantine.take(0.0)) == ["a", "b"]


def test_the_requests_of_an_api_server_that_has_gone_go_with_it_also_the_one_on_trial() -> None:
    quarantine = Quarantine(MAX_S)
    for name, api_server in (("a", "api-server/1"), ("b", "api-server/1"), ("c", "api-server/0")):
        quarantine.put(again(name, 1.0, api_server), 0.0)
    assert names(quarantine.take(0.0)) == ["a"]
    quarantine.withdraw_all_of("api-server/1")
    assert names(quarantine.take(0.0)) == ["c"] and len(quarantine) == 0
