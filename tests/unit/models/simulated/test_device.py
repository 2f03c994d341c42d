"""When a simulated step is over, and that a poller hears of it."""

import os
import time
from collections.abc import Iterator

import pytest

from antiphon.models.simulated.device import SimulatedDevice
from antiphon.models.simulated.profile import StepTime
from antiphon.models.simulated.step_clock import StepClock
from antiphon.transport.channel import Poller

PATIENCE_S = 10.0


@pytest.fixture
def device() -> Iterator[SimulatedDevice]:
    made = SimulatedDevice()
    made.startup()
    yield made
    made.close()


def poller_of(device: SimulatedDevice) -> Poller:
    poller = Poller()
    poller.register(device.fileno())
    return poller


def test_its_descriptor_becomes_readable_when_the_step_is_over_and_not_before(device: SimulatedDevice) -> None:
    end_s = time.monotonic() + 0.03
    device.begin(end_s)
    assert poller_of(device).wait(PATIENCE_S)
    assert device.is_over() and time.monotonic() >= end_s


def test_it_is_at_work_until_the_end_of_the_step(device: SimulatedDevice) -> None:
    device.begin(time.monotonic() + 3600.0)
    assert not device.is_over() and not poller_of(device).wait(0.0)


def test_a_step_that_was_collected_wakes_nobody_any_more(device: SimulatedDevice) -> None:
    end_s = time.monotonic() + 0.01
    device.begin(end_s)
    device.finish()
    assert time.monotonic() >= end_s
    assert not poller_of(device).wait(0.0)


def test_a_step_shorter_than_a_turn_of_the_loop_is_over_when_it_has_begun(device: SimulatedDevice) -> None:
    end_s = time.monotonic() + 0.0005
    device.begin(end_s)
    assert device.is_over() and time.monotonic() >= end_s


def test_it_gives_its_descriptor_back() -> None:
    num_before = len(os.listdir("/proc/self/fd"))
    device = SimulatedDevice()
    device.startup()
    device.close()
    assert len(os.listdir("/proc/self/fd")) == num_before


def test_a_step_takes_what_the_profile_says_from_when_it_began() -> None:
    clock = StepClock(StepTime(base_ms=20.0, per_sequence_ms=5.0, per_token_ms=1.0), seed=1, replica="thinker.0")
    assert clock.end_s(100.0, num_sequences=2, num_more_tokens=3) == pytest.approx(100.033)


def test_steps_of_one_seed_and_replica_take_the_same_time_each_its_own() -> None:
    step = StepTime(base_ms=1000.0, jitter=0.5)
    one, other = (StepClock(step, seed=7, replica="talker.1") for _ in range(2))
    ends = [one.end_s(0.0, 1, 0) for _ in range(5)]
    assert ends == [other.end_s(0.0, 1, 0) for _ in range(5)]
    assert len(set(ends)) == 5 and all(0.5 <= end <= 1.5 for end in ends)
