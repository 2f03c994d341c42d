"""Simulated stages on the real engines: lengths, rows, waiting, ends; what was lost on the way is an error."""

import time
from collections.abc import Callable

import numpy as np
import pytest

from antiphon.errors import AntiphonError
from antiphon.messages.client import AudioChunk, ImageOutput, RawRows, TextDelta
from antiphon.messages.params import SamplingParams
from antiphon.models.simulated.generator import audio_codec, picture_codec
from antiphon.models.simulated.row_values import LAST, PROMPT, Check, RowCodec, request_number, text_of
from antiphon.stage.engine.sequences import SequenceEngine
from antiphon.stage.request import Arrays
from tests.unit.models.simulated.stages import Made, Stage, give

OMNI = "sim-qwen3-omni"
PROMPT_WORDS, NUM_TOKENS = 30, 20
TEXT = "word " * PROMPT_WORDS
TWENTY = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
HIDDEN, EMBED = RowCodec("hidden", "bfloat16", (2048,)), RowCodec("embed", "bfloat16", (2048,))
CODES = RowCodec("codes", "int16", (16,))
LIMITS = {
    "roomy": {},
    "seven positions a step": {"max_num_batched_tokens": 7},
    "few blocks": {"num_kv_blocks": 8},
    "few blocks, seven positions a step": {"num_kv_blocks": 8, "max_num_batched_tokens": 7},
    "two at once": {"max_num_seqs": 2},
}


def text(made: Made) -> str:
    return "".join(data.text for data in made.client if isinstance(data, TextDelta))


def thinkers_rows(request_id: str) -> tuple[Arrays, Arrays]:
    """What a thinker hands off for one request: rows, and what belongs to it as a whole."""
    stage = Stage(OMNI, "thinker")
    stage.ask(request_id, TEXT, TWENTY)
    stage.run()
    made = stage.made[request_id]
    return made.rows("embed", "hidden"), {"markers": made.once("markers")}


@pytest.mark.parametrize("limits", LIMITS)
def test_a_writer_says_its_words_and_hands_off_each_positions_row_once(limits: str) -> None:
    stage = Stage(OMNI, "thinker", limits=LIMITS[limits])
    names = [f"req-{index}" for index in range(4)]
    for name in names:
        stage.ask(name, TEXT, TWENTY)
    stage.run()
    for name in names:
        made = stage.made[name]
        assert text(made) == text_of(name, NUM_TOKENS)
        assert (made.end.finish_reason, made.end.usage.num_input_tokens) == ("length", PROMPT_WORDS)
        assert made.end.usage.num_output_tokens == NUM_TOKENS
        for codec in (HIDDEN, EMBED):
            rows = made.rows(codec.key)[codec.key]
            flags = codec.check(request_number(name), 0, rows, Check.FULL)
            assert flags.tolist() == [PROMPT] * PROMPT_WORDS + [0] * (NUM_TOKENS - 2) + [LAST]
        assert made.once("markers").shape == (3, 2048)
    assert isinstance(stage.engine, SequenceEngine)
    assert (stage.engine.num_preemptions > 0) == ("few blocks" in limits)


@pytest.mark.parametrize(
    ("sampling", "num_tokens", "reason"),
    [
        (SamplingParams(max_tokens=7), 7, "length"),
        (SamplingParams(max_tokens=1), 1, "length"),
        (SamplingParams(max_tokens=12), 12, "stop"),
        (SamplingParams(max_tokens=50), 12, "stop"),
        (SamplingParams(max_tokens=50, ignore_eos=True), 50, "length"),
    ],
)
def test_an_answer_is_as_long_as_the_client_or_the_profile_wants(
    sampling: SamplingParams, num_tokens: int, reason: str
) -> None:
    stage = Stage(OMNI, "thinker", natural_tokens=12)
    stage.ask("req-1", "one two three", sampling)
    stage.run()
    made = stage.made["req-1"]
    assert text(made) == text_of("req-1", num_tokens)
    assert (made.end.finish_reason, made.end.usage.num_output_tokens) == (reason, num_tokens)
    assert len(made.rows("hidden")["hidden"]) == 3 + num_tokens - 1


def test_a_request_without_a_talker_makes_no_rows() -> None:
    stage = Stage(OMNI, "thinker", hidden_states_lane="both")
    stage.ask("req-1", TEXT, TWENTY, hands_off=False)
    stage.run()
    assert not any(output.handoff for output in stage.made["req-1"].outputs)
    assert text(stage.made["req-1"]) == text_of("req-1", NUM_TOKENS)
    assert all(isinstance(data, TextDelta) for data in stage.made["req-1"].client)


@pytest.mark.parametrize("lane", ["next", "both"])
def test_the_lane_decides_whether_the_clients_side_gets_the_rows_too(lane: str) -> None:
    stage = Stage(OMNI, "thinker", hidden_states_lane=lane)
    stage.ask("req-1", TEXT, TWENTY)
    stage.run()
    made = stage.made["req-1"]
    raw = [data for data in made.client if isinstance(data, RawRows)]
    for key, rows in made.rows("embed", "hidden").items():
        sent = b"".join(data.data for data in raw if data.key == key)
        assert sent == (rows.tobytes() if lane == "both" else b"")


def test_a_talker_makes_no_more_frames_than_it_has_words_until_its_input_ends() -> None:
    rows, whole = thinkers_rows("req-1")
    stage = Stage(OMNI, "talker")
    edge = stage.open("req-1", is_final=False)
    give(edge, {key: array[:11] for key, array in rows.items()}, whole)
    stage.engine.add(stage.request)
    stage.run()
    assert stage.made["req-1"].outputs == [], "the prompt is not complete"
    give(edge, {key: array[11:PROMPT_WORDS] for key, array in rows.items()})
    stage.run()
    assert stage.made["req-1"].outputs == [], "there is no word to speak yet"
    for index in range(PROMPT_WORDS, PROMPT_WORDS + 5):
        give(edge, {key: array[index : index + 1] for key, array in rows.items()})
        stage.run()
        assert len(stage.made["req-1"].rows("codes")["codes"]) == index + 1 - PROMPT_WORDS
    give(edge, {key: array[PROMPT_WORDS + 5 :] for key, array in rows.items()}, ends=True)
    stage.run()
    made = stage.made["req-1"]
    flags = CODES.check(request_number("req-1"), 0, made.rows("codes")["codes"], Check.FULL)
    assert flags.tolist() == [0] * (int(3.5 * NUM_TOKENS) - 1) + [LAST]
    assert (made.end.usage.num_input_tokens, made.end.usage.num_output_tokens) == (PROMPT_WORDS, 70)


@pytest.mark.parametrize("per_word", [0.0, 0.3, 1.0, 2.5])
def test_a_talker_makes_a_fixed_number_of_frames_per_token_however_its_input_is_cut(per_word: float) -> None:
    rows, whole = thinkers_rows("req-1")
    for step in (1, 7, 100):
        stage = Stage(OMNI, "talker", per_word=per_word)
        edge = stage.open("req-1", is_final=False)
        total = len(rows["hidden"])
        for start in range(0, total, step):
            cut = {key: array[start : start + step] for key, array in rows.items()}
            give(edge, cut, {} if start else whole, ends=start + step >= total)
            if not start:
                stage.engine.add(stage.request)
            stage.run()
        made = stage.made["req-1"]
        assert made.end.usage.num_output_tokens == int(per_word * NUM_TOKENS)
        assert sum(len(a["codes"]) for o in made.outputs for a in o.handoff.values()) == int(per_word * NUM_TOKENS)


def lost(rows: Arrays, whole: Arrays) -> None:
    for key in rows:
        rows[key] = np.delete(rows[key], 35, axis=0)


def swapped_keys(rows: Arrays, whole: Arrays) -> None:
    rows["embed"], rows["hidden"] = rows["hidden"], rows["embed"]


def cut_short(rows: Arrays, whole: Arrays) -> None:
    for key in rows:
        rows[key] = rows[key][:-1]


def one_key_behind(rows: Arrays, whole: Arrays) -> None:
    rows["hidden"] = np.concatenate([rows["hidden"][:1], rows["hidden"][:-1]])


def repeated(rows: Arrays, whole: Arrays) -> None:
    for key in rows:
        rows[key] = np.concatenate([rows[key], rows[key][-1:]])


def without_markers(rows: Arrays, whole: Arrays) -> None:
    whole.clear()


def damaged_markers(rows: Arrays, whole: Arrays) -> None:
    whole["markers"][2, 100] ^= 1


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (lost, "row 36 of embed came where row 35 was expected"),
        (swapped_keys, "row 0 of embed was expected is no row of this request"),
        (cut_short, "the input ended after row 47, which is not the last one"),
        (one_key_behind, "row 0 of hidden came where row 1 was expected"),
        (repeated, "row 48 of embed came where row 49 was expected"),
        (without_markers, r"beside the rows came \[\], expected \['markers'\]"),
        (damaged_markers, "row 0 of markers is damaged"),
    ],
)
def test_what_was_harmed_on_the_way_fails_its_request_alone(
    harm: Callable[[Arrays, Arrays], None], problem: str
) -> None:
    stage = Stage(OMNI, "talker")
    for name in ("req-harmed", "req-sound"):
        rows, whole = thinkers_rows(name)
        edge = stage.open(name, is_final=False)
        if name == "req-harmed":
            harm(rows, whole)
        give(edge, {key: array[:1] for key, array in rows.items()}, {} if "markers" not in whole else None)
        edge.whole.update(whole)
        try:
            stage.engine.add(stage.request)
        except AntiphonError as error:
            stage.made[name].error = error
            continue
        give(edge, {key: array[1:] for key, array in rows.items()}, ends=True)
    stage.run()
    error = stage.made["req-harmed"].error
    assert error is not None
    with pytest.raises(type(error), match=f"thinker->talker: req-harmed: .*{problem}"):
        raise error
    assert stage.made["req-sound"].end.usage.num_output_tokens == 70


def test_a_vocoder_makes_the_samples_of_every_frame_and_nothing_of_a_wrong_one() -> None:
    stage = Stage(OMNI, "code2wav")
    for name in ("req-1", "req-2"):
        number = request_number(name)
        codes = CODES.rows_of(number, 0, 60, ends=True)
        edge = stage.open(name)
        give(edge, {"codes": codes[:25]})
        stage.engine.add(stage.request)
        stage.run()
        if name == "req-2":
            codes[40] = CODES.rows_of(request_number("req-1"), 40, 1)[0]
        give(edge, {"codes": codes[25:]}, ends=True)
        stage.run()
    spoken = b"".join(data.pcm for data in stage.made["req-1"].client if isinstance(data, AudioChunk))
    assert spoken == audio_codec(1920).rows_of(request_number("req-1"), 0, 60, ends=True).tobytes()
    assert stage.made["req-1"].end.usage.num_samples == 60 * 1920
    error = stage.made["req-2"].error
    assert error is not None and "talker->code2wav: req-2: what came where row 40 of codes" in error.message


@pytest.mark.parametrize(
    ("pipeline", "name", "is_allowed"), [(OMNI, "code2wav", False), ("sim-minicpm-o", "token2wav", True)]
)
def test_an_end_without_any_row_is_an_error_unless_the_profile_allows_it(
    pipeline: str, name: str, is_allowed: bool
) -> None:
    stage = Stage(pipeline, name)
    give(stage.open("req-1"), {}, ends=True)
    stage.engine.add(stage.request)
    stage.run()
    made = stage.made["req-1"]
    assert (made.error is None) == is_allowed
    assert made.error is not None or made.end.client == ()


def test_a_picture_is_made_when_all_rows_have_come() -> None:
    latent = RowCodec("latent", "bfloat16", (4096,)).rows_of(request_number("req-1"), 0, 30, ends=True)
    stage = Stage("sim-mammoth", "dit")
    edge = stage.open("req-1")
    give(edge, {"latent": latent[:29]})
    stage.engine.add(stage.request)
    stage.run()
    assert stage.made["req-1"].client == []
    give(edge, {"latent": latent[29:]}, ends=True)
    stage.run()
    (picture,) = stage.made["req-1"].client
    assert isinstance(picture, ImageOutput) and (picture.height, picture.width, picture.channels) == (1024, 1024, 3)
    lines = np.frombuffer(picture.pixels, np.uint8).reshape(1024, 1024, 3)
    picture_codec(1024).check(request_number("req-1"), 0, lines, Check.FULL)


def test_a_step_lasts_at_least_as_long_as_the_profile_says() -> None:
    stage = Stage(OMNI, "thinker", base_ms=5.0, per_sequence_ms=1.0, per_token_ms=0.5)
    for name in ("req-1", "req-2"):
        stage.ask(name, TEXT, SamplingParams(max_tokens=4, ignore_eos=True))
    began_s = time.perf_counter()
    stage.run(patience_s=0.1)
    prefill_s, decodes_s = 0.005 + 0.002 + 0.0005 * 2 * (PROMPT_WORDS - 1), 3 * (0.005 + 0.002)
    assert time.perf_counter() - began_s >= prefill_s + decodes_s
