"""A chaos plan: decided by its seed alone, and with everything in it."""

import pytest

from antiphon.bench.chaos.actions import (
    Ask,
    Door,
    Drain,
    Ending,
    Form,
    Hit,
    How,
    Join,
    Manner,
    Plan,
    make_plan,
    text_of,
)

STAGES = ("thinker", "talker", "code2wav")
FAULTS = ("raise-in-talker", "exit-in-talker")


def plan(seconds: float = 600, seed: int = 1) -> Plan:
    return make_plan(seconds, seed, 12.0, STAGES, FAULTS)


def actions(of: Plan) -> list[Ask | Hit | Join | Drain]:
    return [action for episode in of.episodes for round_ in episode.rounds for action in round_.actions]


def test_a_plan_is_decided_by_its_seed_and_its_length() -> None:
    assert plan(60, seed=7) == plan(60, seed=7)
    assert plan(60, seed=7) != plan(60, seed=8)
    assert len(actions(plan(60))) < len(actions(plan(120)))


def test_ten_minutes_have_every_kind_of_everything() -> None:
    long = plan()
    asks = [action for action in actions(long) if isinstance(action, Ask)]
    hits = [action for action in actions(long) if isinstance(action, Hit)]
    assert {ask.form for ask in asks} == set(Form)
    assert {ask.manner for ask in asks} == set(Manner)
    assert {ask.door for ask in asks} == set(Door)
    assert {ask.fault for ask in asks} == {"", *FAULTS}
    assert {hit.how for hit in hits} == set(How)
    assert {hit.kind for hit in hits if hit.how is How.KILL} == {*STAGES, "api-server", "join"}
    assert {hit.kind for hit in hits if hit.how is How.FREEZE} == {*STAGES, "api-server", "orchestrator", "launcher"}
    assert {action.stage for action in actions(long) if isinstance(action, Join)} == set(STAGES)
    assert {action.by_signal for action in actions(long) if isinstance(action, Drain)} == {True, False}
    assert {episode.ending for episode in long.episodes} == set(Ending)


def test_the_actions_of_a_round_are_in_order_and_within_it() -> None:
    for episode in plan(120).episodes:
        for round_ in episode.rounds:
            times_s = [action.at_s for action in round_.actions]
            assert times_s == sorted(times_s)
            assert all(0 <= at_s < round_.duration_s for at_s in times_s)


@pytest.mark.parametrize("seconds", [20, 60, 600])
def test_every_plan_has_a_server_that_is_seen_at_rest_twice_and_one_that_is_cut_off(seconds: float) -> None:
    first, *others = plan(seconds).episodes
    assert len(first.rounds) >= 3 and first.ending is Ending.TERM
    assert others


def test_no_two_requests_have_the_same_number_or_text() -> None:
    asks = [action for action in actions(plan(60)) if isinstance(action, Ask)]
    assert len({ask.number for ask in asks}) == len(asks)
    assert len({text_of(ask) for ask in asks}) == len(asks)
    assert all(len(text_of(ask)) == ask.num_chars for ask in asks if not ask.fault)
