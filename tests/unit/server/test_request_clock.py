"""A request's times: what is observed, when, and of which answers."""

import pytest

from antiphon.messages.client import AudioChunk
from antiphon.server import request_clock
from antiphon.server.request_clock import RequestClock

RATE = 1000


def chunk(duration_s: float) -> AudioChunk:
    return AudioChunk(bytes(round(duration_s * RATE) * 2), RATE)


class Recorder:
    """Keeps what is observed."""

    def __init__(self) -> None:
        self.seen: dict[str, tuple[str, float]] = {}

    def _keep(self, name: str, task: str, value: float) -> None:
        assert name not in self.seen, f"{name} was observed twice"
        self.seen[name] = (task, pytest.approx(value))

    def ttft(self, task: str, value: float) -> None:
        self._keep("ttft", task, value)

    def ttfa(self, task: str, value: float) -> None:
        self._keep("ttfa", task, value)

    def tpot(self, task: str, value: float) -> None:
        self._keep("tpot", task, value)

    def e2e(self, task: str, value: float) -> None:
        self._keep("e2e", task, value)

    def rtf(self, task: str, value: float) -> None:
        self._keep("rtf", task, value)

    def underrun(self, task: str, value: float) -> None:
        self._keep("underrun", task, value)


class Moment:
    """Stands in for the clock of the machine."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> Moment:
    moment = Moment()
    monkeypatch.setattr(request_clock, "time", moment)
    return moment


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def clock(moment: Moment, recorder: Recorder) -> RequestClock:
    clock = RequestClock(recorder)
    clock.begin("chat")
    return clock


def send(clock: RequestClock, moment: Moment, at_s: float, duration_s: float) -> None:
    moment.now_s = 100.0 + at_s
    clock.saw_audio(chunk(duration_s))
    clock.sent_audio()


def test_a_spoken_answer_is_measured_from_its_arrival_to_its_last_byte(clock, moment, recorder):
    for at_s in (1.0, 2.0, 4.0):
        moment.now_s = 100.0 + at_s
        clock.saw_text()
    send(clock, moment, 5.0, 2.0)
    clock.complete(num_output_tokens=4)
    assert set(recorder.seen) == {"ttft", "ttfa"}
    moment.now_s = 110.0
    clock.last_byte()
    assert recorder.seen == {
        "ttft": ("chat", 1.0),
        "ttfa": ("chat", 5.0),
        "tpot": ("chat", 1.0),
        "e2e": ("chat", 10.0),
        "rtf": ("chat", 5.0),
        "underrun": ("chat", 0.0),
    }


@pytest.mark.parametrize(
    ("sent", "underrun_s"),
    [
        ([(0.0, 1.0), (0.9, 1.0), (1.9, 1.0)], 0.0),
        ([(0.0, 1.0), (1.5, 1.0), (2.0, 1.0)], 0.5),
        ([(0.0, 1.0), (1.5, 1.0), (3.0, 1.0)], 1.0),
        ([(3.0, 1.0), (3.1, 1.0)], 0.0),
    ],
)
def test_an_underrun_is_how_long_a_player_that_starts_at_once_stands_still_in_all(
    clock, moment, recorder, sent, underrun_s
):
    for at_s, duration_s in sent:
        send(clock, moment, at_s, duration_s)
    clock.complete()
    clock.last_byte()
    assert recorder.seen["underrun"] == ("chat", pytest.approx(underrun_s))


def test_audio_that_the_encoder_holds_back_is_not_there_for_the_player(clock, moment, recorder):
    clock.saw_audio(chunk(1.0))
    send(clock, moment, 0.0, 1.0)  # two seconds are out
    clock.saw_audio(chunk(5.0))  # the encoder gives nothing for it
    send(clock, moment, 3.0, 1.0)
    clock.complete()
    clock.last_byte()
    assert recorder.seen["underrun"] == ("chat", 1.0)


def test_an_answer_that_is_not_complete_has_no_end(clock, moment, recorder):
    clock.saw_text()
    moment.now_s = 105.0
    clock.last_byte()
    assert set(recorder.seen) == {"ttft"}


def test_an_answer_that_is_sent_as_a_whole_has_no_first_audio_and_no_underrun(clock, recorder):
    clock.saw_audio(chunk(1.0))
    clock.complete()
    clock.last_byte()
    assert set(recorder.seen) == {"e2e", "rtf"}
