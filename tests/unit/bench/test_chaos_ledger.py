"""The ledger: what makes a run wrong, and what does not."""

import base64

import pytest

from antiphon.bench.chaos.actions import Ask, Door, Form, Manner
from antiphon.bench.chaos.answer import CONNECTION_LOST, Answer, End, Expected, Outcome
from antiphon.bench.chaos.ledger import Disturbance, Disturbed, Growth, Ledger
from antiphon.errors import ReplicaDiedError
from antiphon.ids import RequestId
from antiphon.server.chat_answer import AnswerHead, ChunkWriter
from antiphon.server.http_errors import envelope
from antiphon.server.sse import DONE, error_event

DIED = "talker/1 died (SIGKILL) while it served req-1; try again"


def ask(number: int, form: Form = Form.CHAT, fault: str = "", door: Door = Door.HTTP) -> Ask:
    return Ask(0.0, number, door, form, Manner.READ, num_chars=40, fault=fault)


def ledger(*outcomes: Outcome, asks: tuple[Ask, ...] = ()) -> Ledger:
    """With enough finished requests, rests and growths to be clean otherwise."""
    made = Ledger(num_rests=1, growths=[Growth("talker/0", 0, 0, 0)])
    for each in asks or tuple(ask(outcome.number) for outcome in outcomes):
        made.submit(each)
    made.outcomes += outcomes
    for number in range(100, 110):
        made.submit(ask(number))
        made.outcomes.append(Outcome(number, End.FINISHED))
    return made


def failed(reason: str, message: str = "", began_s: float = 10.0) -> Outcome:
    return Outcome(1, End.FAILED, reason, message, began_s=began_s, ended_s=began_s + 1)


def wrong_lines(of: Ledger) -> list[str]:
    return [line.name for line in of.lines() if line.ok is False]


def test_a_run_without_a_fault_is_clean() -> None:
    assert wrong_lines(ledger(Outcome(2, End.ABORTED, "client left"), failed("overloaded"))) == []


def test_a_request_without_an_end_is_lost_and_the_balance_is_wrong() -> None:
    assert wrong_lines(ledger(Outcome(1, End.LOST))) == ["requests", "lost: no end in time"]
    unheard = ledger(asks=(ask(1),))
    assert wrong_lines(unheard) == ["requests"]


def test_a_wrong_answer_makes_a_run_wrong_however_it_ended() -> None:
    for end in (End.FINISHED, End.ABORTED):
        assert wrong_lines(ledger(Outcome(1, end, is_wrong=True))) == ["wrong answers"]


@pytest.mark.parametrize(
    ("disturbance", "is_excused"),
    [
        (Disturbance(9.0, Disturbed.REPLICA, "talker/1"), True),
        (Disturbance(10.5, Disturbed.REPLICA, "talker/"), True),
        (Disturbance(9.0, Disturbed.REPLICA, "talker/0"), False),
        (Disturbance(1.0, Disturbed.REPLICA, "talker/1"), False),
        (Disturbance(11.5, Disturbed.REPLICA, "talker/1"), False),
        (Disturbance(9.0, Disturbed.API_SERVER, "api-server/0"), False),
    ],
)
def test_a_replicas_death_excuses_failures_that_name_it_and_are_near(disturbance, is_excused) -> None:
    made = ledger(failed("replica_died", DIED))
    made.disturbances.append(disturbance)
    assert (wrong_lines(made) == []) is is_excused


def test_an_api_server_that_drains_excuses_new_requests_but_not_those_that_it_had_accepted() -> None:
    for began_s, is_excused in ((8.0, False), (9.9, True), (14.0, True), (30.0, False)):
        made = ledger(Outcome(1, End.FAILED, "shutting_down", began_s=began_s, ended_s=began_s + 4))
        made.disturbances.append(Disturbance(10.0, Disturbed.DRAINED))
        assert (wrong_lines(made) == []) is is_excused, began_s


def test_a_cut_connection_is_excused_by_a_dead_replica_only_where_there_are_no_words_for_it() -> None:
    for form, is_excused in ((Form.SPEECH_BYTES, True), (Form.SPEECH_EVENTS, False), (Form.CHAT, False)):
        made = ledger(failed(CONNECTION_LOST), asks=(ask(1, form),))
        made.disturbances.append(Disturbance(9.0, Disturbed.REPLICA, "talker/1"))
        assert (wrong_lines(made) == []) is is_excused, form


def test_a_fault_that_was_asked_for_is_no_fault() -> None:
    message = "req-1: the model raised RuntimeError: the talker was told to raise"
    assert wrong_lines(ledger(failed("stage_error", message), asks=(ask(1, fault="raise-in-talker"),))) == []
    assert wrong_lines(ledger(failed("stage_error", message))) == ["failures that nothing excuses"]


def test_growth_counts_beyond_what_more_processes_cost() -> None:
    for growth, is_clean in (
        (Growth("talker/0", 9 << 20, 0, 0), False),
        (Growth("talker/0", 1 << 20, 9, 0), False),
        (Growth("talker/0", 1 << 20, 9, 1), True),
    ):
        made = ledger()
        made.growths.append(growth)
        assert made.is_clean is is_clean, growth


def test_events_are_read_as_the_server_writes_them() -> None:
    writer = ChunkWriter(AnswerHead(RequestId("req-1"), "sim-voice"), 0, audio_out=True, include_usage=False)
    pcm = base64.b64encode(b"abcdef").decode()
    events = writer.role() + writer.text("he") + writer.audio(pcm) + writer.text("llo")
    answer = Answer(Expected("hello", b"abcdef"))
    answer.read_body(Form.SPOKEN_CHAT_EVENTS, events + writer.finish("stop") + DONE, ended=True)
    assert (answer.text, answer.pcm, answer.is_complete, answer.is_wrong) == ("hello", b"abcdef", True, False)

    cut_off = Answer(Expected("hello", b"abcdef"))
    cut_off.read_body(Form.SPOKEN_CHAT_EVENTS, events[:-4], ended=False)
    assert (cut_off.text, cut_off.is_complete, cut_off.is_wrong) == ("he", False, False)

    failed_later = Answer(Expected("hello", b"abcdef"))
    failed_later.read_body(Form.CHAT_EVENTS, events + error_event(envelope(ReplicaDiedError(DIED))), ended=True)
    assert (failed_later.error_code, failed_later.is_complete) == ("replica_died", False)


@pytest.mark.parametrize("text", ["helo", "hhello", "ello", "hello again"])
def test_a_lost_a_doubled_and_a_foreign_character_are_wrong(text: str) -> None:
    answer = Answer(Expected("hello", b""), text=text, is_complete=True)
    assert answer.is_wrong
