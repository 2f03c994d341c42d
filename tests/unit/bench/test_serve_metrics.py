import pytest

from antiphon.bench.serve import metrics
from antiphon.bench.serve.messages import Record, Result
from antiphon.bench.serve.metrics import Lateness, Slo, totals_of, values_of
from antiphon.errors import ConfigError

RECORD = Record(
    number=0,
    due_s=1.0,
    ready_s=1.0,
    sent_s=1.5,
    end_s=6.5,
    text_s=[2.0, 2.5, 4.0],
    audio_s=[3.0, 3.5, 6.0],
    audio_durations_s=[1.0, 1.0, 0.5],
    num_output_tokens=5,
)
SILENT = Record(number=1, due_s=2.0, ready_s=2.0, sent_s=2.0, end_s=3.0, text_s=[2.75], num_output_tokens=1)
FAILED = Record(number=2, due_s=2.0, ready_s=2.0, sent_s=2.0, end_s=11.5, error="HTTP 503")


def test_each_metric_of_an_answer_is_what_a_stopwatch_says() -> None:
    values = values_of([RECORD])
    assert values["ttft"] == [0.5]
    assert values["tpot"] == [2.0 / 4]  # five tokens came in three deltas
    assert values["itl"] == [0.5, 1.5]
    assert values["e2el"] == [5.0]
    assert values["audio_ttfp"] == [1.5]
    assert values["audio_duration"] == [2.5]
    assert values["audio_rtf"] == [4.5 / 2.5]
    # the player begins at 3.0 and has 2 s of sound, so it falls silent at 5.0; the rest comes at 6.0
    assert values["audio_underrun"] == [1.0]


def test_a_piece_that_comes_before_it_is_needed_leaves_no_underrun() -> None:
    on_time = Record(0, 0.0, 0.0, 0.0, 9.0, audio_s=[1.0, 2.0, 3.5], audio_durations_s=[1.0, 1.5, 0.2])
    assert metrics.audio_underrun(on_time) == 0.0


def test_the_worst_underrun_counts_and_later_sound_does_not_heal_it() -> None:
    # needed at 1.0 (came at 1.25), 1.5 (came at 3.5: 2 s late), 11.5 (long there)
    late = Record(0, 0.0, 0.0, 0.0, 9.0, audio_s=[0.5, 1.25, 3.5, 3.6], audio_durations_s=[0.5, 0.5, 10.0, 1.0])
    assert metrics.audio_underrun(late) == 2.0


def test_answers_without_text_or_audio_are_no_zeroes() -> None:
    values = values_of([SILENT])
    assert values == {"ttft": [0.75], "e2el": [1.0]}


def test_failed_requests_are_counted_and_measured_nowhere() -> None:
    totals = totals_of([RECORD, SILENT, FAILED], Slo())
    assert (totals.num_requests, totals.num_failed) == (3, 1)
    assert totals.duration_s == 10.0
    assert totals.request_throughput == 0.2
    assert totals.output_token_throughput == 0.6
    assert totals.goodput is None
    assert len(values_of([RECORD, FAILED])["e2el"]) == 1


def test_goodput_counts_answers_within_every_limit() -> None:
    assert totals_of([RECORD, SILENT, FAILED], Slo.parse("ttft=0.75")).goodput == 0.2
    assert totals_of([RECORD, SILENT, FAILED], Slo.parse("ttft=0.6,e2el=5")).goodput == 0.1
    assert totals_of([RECORD, SILENT, FAILED], Slo.parse("audio_underrun=1")).goodput == 0.1  # SILENT has none
    wrong = Record(3, 0.0, 0.0, 1.5, 2.0, text_s=[1.6], is_wrong=True)
    assert totals_of([RECORD, wrong], Slo.parse("ttft=0.75")).goodput == 0.2


def test_continuity_is_the_share_of_answers_that_a_player_could_follow() -> None:
    followed = Record(4, 0.0, 0.0, 1.5, 6.0, audio_s=[2.0, 3.0625], audio_durations_s=[1.0, 1.0])  # 62 ms late
    assert totals_of([RECORD, followed], Slo()).audio_continuity_ok_rate == 0.5


@pytest.mark.parametrize("text", ["ttft", "ttft=soon", "itl=0.1", "ttfb=1"])
def test_a_limit_of_what_is_no_metric_of_an_answer_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--slo"):
        Slo.parse(text)


def lateness(send_lags_s: list[float], loop_lags_s: list[float], cpu_s: float) -> Lateness:
    records = [Record(n, 1.0, 1.0, 1.0 + lag_s) for n, lag_s in enumerate(send_lags_s)]
    return Lateness.of(Result(records, loop_lags_s, wall_s=10.0, cpu_s=cpu_s))


def test_a_load_generator_that_was_late_or_busy_is_refused_with_its_figures() -> None:
    assert lateness([0.001] * 100, [0.002] * 100, 3.0).problem(0.02) == ""
    assert "it sent 50.0 ms late" in lateness([0.05] * 100, [0.002] * 100, 3.0).problem(0.02)
    assert "read 31.0 ms late" in lateness([0.001] * 100, [0.031] * 100, 3.0).problem(0.02)
    assert "used 95% of a core" in lateness([0.001] * 100, [0.002] * 100, 9.5).problem(0.02)
    assert lateness([0.05] * 100, [0.002] * 100, 3.0).problem(0.06) == ""
