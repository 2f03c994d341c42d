import zlib

import msgspec
import pytest

from antiphon.bench.serve.expected import checker_of
from antiphon.bench.serve.messages import Record, Task
from antiphon.models.registry import load_pipeline
from antiphon.models.simulated.generator import audio_codec
from antiphon.models.simulated.row_values import request_number, text_of

RECORD = Record(
    0, 0.0, 0.0, 0.0, audio_durations_s=[25 * 0.08, 10 * 0.08], num_output_tokens=10, answer_id="req-9f86d081884c7d65"
)


def test_what_a_simulated_pipeline_says_follows_from_the_name_of_the_request() -> None:
    checker = checker_of(load_pipeline("sim-qwen3-omni"))
    assert checker is not None
    expected = checker(Task.CHAT_AUDIO, "", RECORD)
    assert expected.text == text_of("req-9f86d081884c7d65", 10) != text_of("req-0f86d081884c7d65", 10)
    rows = audio_codec(1920).rows_of(request_number("req-9f86d081884c7d65"), 0, 35, ends=True)
    assert expected.pcm() == rows.tobytes()


def test_an_answer_that_stops_early_is_not_the_one_that_was_expected() -> None:
    checker = checker_of(load_pipeline("sim-qwen3-omni"))
    assert checker is not None
    whole = audio_codec(1920).rows_of(request_number(RECORD.answer_id), 0, 35, ends=True).tobytes()
    cut = msgspec.structs.replace(RECORD, audio_durations_s=[25 * 0.08])
    came = whole[: 25 * 1920 * 2]  # right so far, but its last row does not say that it is the last
    assert zlib.crc32(checker(Task.CHAT_AUDIO, "", cut).pcm()) != zlib.crc32(came)


def test_sim_voice_says_what_it_is_asked() -> None:
    checker = checker_of(load_pipeline("sim-voice"))
    assert checker is not None
    assert checker(Task.CHAT, "Good morning.", RECORD).text == "Good morning."


@pytest.mark.parametrize("pipeline", ["voice", "sim-relay"])
def test_of_other_pipelines_nothing_is_known(pipeline: str) -> None:
    assert checker_of(load_pipeline(pipeline)) is None
