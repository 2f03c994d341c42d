"""Restarts: when a process is due again, when its deaths are forgotten, and when it is given up."""

from antiphon.config.deploy import RestartsDeploy
from antiphon.launch.restarts import Restarts


def restarts(max_restarts: int = 2, backoff_s: float = 0.5, healthy_s: float = 100.0) -> Restarts:
    made = Restarts(RestartsDeploy(max_restarts, backoff_s, healthy_s))
    made.started("talker/0", 0.0)
    return made


def test_each_restart_in_a_row_waits_twice_as_long_as_the_one_before() -> None:
    these, now_s, waits_s = restarts(max_restarts=9), 0.0, []
    for _ in range(9):
        assert these.died("talker/0", "SIGKILL", now_s) == ""
        died_s = now_s
        while not these.is_due("talker/0", now_s):
            assert these.is_waiting("talker/0")
            now_s += 0.25
        waits_s.append(now_s - died_s)
        these.started("talker/0", now_s)
        assert not these.is_waiting("talker/0")
        assert not these.is_due("talker/0", now_s + 1000.0)
    assert waits_s == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 32.0, 32.0]


def test_giving_up_says_how_often_and_how_it_died() -> None:
    these = restarts()
    for reason, problem in [("SIGKILL", ""), ("exit code 1", "")]:
        assert these.died("talker/0", reason, 1.0) == problem
        these.started("talker/0", 1.0)
    given_up = these.died("talker/0", "SIGKILL", 1.0)
    assert given_up.startswith("talker/0 died 3 times (SIGKILL 2 times, exit code 1 once); giving up")


def test_deaths_before_a_long_life_do_not_count() -> None:
    these, now_s = restarts(), 0.0
    for _ in range(10):
        now_s += 100.1
        assert these.died("talker/0", "SIGKILL", now_s) == ""
        assert these.is_due("talker/0", now_s + 0.5)
        these.started("talker/0", now_s)


def test_processes_are_counted_apart() -> None:
    these = restarts(max_restarts=1)
    these.started("talker/1", 0.0)
    assert these.died("talker/0", "SIGKILL", 1.0) == ""
    assert these.died("talker/1", "SIGKILL", 1.0) == ""
    assert these.died("talker/0", "SIGKILL", 1.0)


def test_with_no_restarts_allowed_the_first_death_is_the_last() -> None:
    assert restarts(max_restarts=0).died("talker/0", "exit code 3", 1.0).startswith("talker/0 died once (exit code 3")
