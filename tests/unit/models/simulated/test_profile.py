"""Profiles: every number is where it belongs, unknown ones are errors, and the packaged ones are what they say."""

from pathlib import Path

import pytest

from antiphon.config.pipeline import ChunkPlan, ClientKind, EngineKind, Lane, Layout, StartWhen
from antiphon.config.resolve import parse_settings, resolve
from antiphon.errors import ConfigError
from antiphon.models.registry import load_pipeline
from antiphon.models.simulated import profiles
from antiphon.models.simulated.profile import StepTime, array_of, load_profile
from antiphon.models.simulated.profile_pipeline import build

PACKAGED = sorted(Path(profiles.__file__).parent.glob("*.yaml"))
OMNI = next(path for path in PACKAGED if path.stem == "qwen3_omni")
TEXT = OMNI.read_text(encoding="utf-8")


def problem_of(text: str, tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        build(path)
    return "\n".join(raised.value.problems)


@pytest.mark.parametrize("path", PACKAGED, ids=lambda path: path.stem)
def test_a_packaged_profile_is_the_pipeline_of_its_name(path: Path) -> None:
    profile = load_profile(path)
    spec = load_pipeline(profile.name)
    assert spec == build(path)
    assert [stage.name for stage in spec.stages] == list(profile.stages)
    assert resolve(profile.name, spec).config.stages.keys() == profile.stages.keys()


def test_there_are_six_packaged_profiles() -> None:
    assert len(PACKAGED) == 6


def test_the_shapes_of_a_profile_are_declared() -> None:
    thinker, talker, code2wav = load_pipeline("sim-qwen3-omni").stages
    assert (thinker.engine, code2wav.engine) == (EngineKind.SIMULATED, EngineKind.GENERATION)
    hidden, markers, codes = thinker.output("hidden"), thinker.output("markers"), talker.output("codes")
    assert hidden is not None and markers is not None and codes is not None
    assert (hidden.dtype, hidden.row_shape, hidden.lane, hidden.client) == (
        "bfloat16",
        (2048,),
        Lane.BOTH,
        ClientKind.RAW,
    )
    assert (markers.row_shape, markers.layout) == ((2048,), Layout.WHOLE)
    assert (codes.dtype, codes.row_shape, codes.lane) == ("int16", (16,), Lane.HANDOFF)
    to_talker, to_code2wav = load_pipeline("sim-qwen3-omni").edges
    assert (to_talker.keys, to_talker.chunk_plan) == (("embed", "hidden", "markers"), ChunkPlan(1, 1))
    assert to_code2wav.chunk_plan == ChunkPlan(25, 25)
    (full,) = load_pipeline("sim-mammoth").edges
    assert full.chunk_plan.is_whole and full.start_when is StartWhen.ALL_CHUNKS


def test_every_number_of_a_stages_time_and_length_is_an_option() -> None:
    thinker, talker, code2wav = (
        {option.name: option.default for option in stage.options} for stage in load_pipeline("sim-qwen3-omni").stages
    )
    assert thinker == {
        "base_ms": 12.0,
        "per_sequence_ms": 0.0,
        "per_token_ms": 0.1152,
        "jitter": 0.02,
        "natural_tokens": 900,
        "per_word": 0.0,
        "hidden_states_lane": "next",
        "seed": 0,
    }
    assert talker["per_word"] == 3.5 and talker["check"] == "sum" and "hidden_states_lane" not in talker
    assert code2wav["left_context_rows"] == 25 and "natural_tokens" not in code2wav


def test_options_replace_the_profiles_numbers_and_others_stay() -> None:
    stage = load_profile(OMNI).stages["thinker"]
    changed = stage.with_options({"base_ms": 2, "hidden_states_lane": "both", "seed": 7})
    assert changed.step.base_ms == 2 and changed.step.per_token_ms == stage.step.per_token_ms
    assert changed.hands_off is not None and changed.hands_off.hidden_states_lane == "both"
    assert changed.sequences == stage.sequences


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [
        ("thinker.options.base=1", "at stages.thinker.options there is 'base_ms'"),
        ("thinker.options.hidden_states_lane=neither", "expected one of next, both"),
        ("talker.options.check=some", "expected one of sum, header, full"),
        ("code2wav.options.base_ms=-1", "expected at least 0"),
    ],
)
def test_a_setting_that_the_profile_does_not_know_is_refused(assignment: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        resolve("x", load_pipeline("sim-qwen3-omni"), settings=parse_settings((f"stages.{assignment}",)))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("base_ms: 12.0", "base: 12.0", "unknown field `base`"),
        ("rows_of: positions", "rows_of: both", "rows_of"),
        ("bfloat16[2048]", "bfloat16", "stage thinker: 'bfloat16' is no array"),
        ("int16[16]", "int17[16]", "stage talker: 'int17[16]' is no array"),
        ("max_num_seqs: 64 ", "max_num_seqs: 0 ", "max_num_seqs"),
        (
            "natural_tokens: 900",
            "natural_tokens: 900\n      per_word: 2",
            "give one of `natural_tokens` and `per_word`",
        ),
        ("samples_per_row: 1920", "left_context_rows: 1", "profile mine.yaml"),
        ("to: code2wav", "to: nowhere", "there is no stage 'nowhere'"),
        ("audio: code2wav", "audio: talker", "declares no such output on the client lane"),
        ("stages:", "stages: {", "profile mine.yaml"),
    ],
)
def test_a_profile_with_a_fault_is_refused(old: str, new: str, problem: str, tmp_path: Path) -> None:
    assert old in TEXT
    assert problem in problem_of(TEXT.replace(old, new), tmp_path)


def test_a_step_takes_what_the_formula_says() -> None:
    step = StepTime(base_ms=12.0, per_sequence_ms=0.5, per_token_ms=0.1152)
    assert step.seconds(1, 2499) == pytest.approx(0.3004, abs=1e-4)
    assert step.seconds(32, 0) == pytest.approx(0.028)


def test_an_array_is_written_as_dtype_and_shape() -> None:
    assert array_of("bfloat16[3, 2048]") == ("bfloat16", (3, 2048))
