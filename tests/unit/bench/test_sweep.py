import math
from pathlib import Path

import pytest

from antiphon.bench.chart import Chart, costs_line, write_chart
from antiphon.bench.ideal.profile import timing_of
from antiphon.bench.ideal.timing import StageKind
from antiphon.bench.serve.arrivals import Load
from antiphon.bench.serve.dataset import TokenRange
from antiphon.bench.serve.messages import Task
from antiphon.bench.serve.run import ServeSettings, Target
from antiphon.bench.sweep import Arm, Point, Sweep, SweepRun, ideal_values, named_arms, points_of
from antiphon.config.pipeline import Modality
from antiphon.config.resolve import parse_settings, resolve
from antiphon.errors import ConfigError
from antiphon.models.registry import load_pipeline

OMNI = "sim-qwen3-omni"
SPOKEN = frozenset({Modality.TEXT, Modality.AUDIO})


def deployment(*assignments: str, pipeline: str = OMNI):
    return resolve(pipeline, load_pipeline(pipeline), settings=parse_settings(assignments))


def sweep(**changes: object) -> Sweep:
    settings = ServeSettings(Load(1.0, seed=5), 4, input_tokens=TokenRange(30, 30), output_tokens=TokenRange(8, 8))
    values = {"rates_rps": (1.0, 2.0), "arms": (Arm("a"), Arm("b")), "num_repeats": 2, **changes}
    return Sweep(Target("", OMNI), settings, **values)


def test_arms_take_turns_and_the_next_repeat_turns_them_round() -> None:
    order = [(repeat, rate, arm.name) for repeat, rate, arm in sweep().schedule()]
    assert order == [
        *((0, 1.0, "a"), (0, 1.0, "b"), (0, 2.0, "a"), (0, 2.0, "b")),
        *((1, 1.0, "b"), (1, 1.0, "a"), (1, 2.0, "b"), (1, 2.0, "a")),
    ]


def test_the_arms_of_a_repeat_get_the_same_load_and_each_repeat_its_own() -> None:
    first, second = sweep().settings_of(2.0, 0), sweep().settings_of(2.0, 1)
    assert first.load == Load(2.0, seed=5) and second.load == Load(2.0, seed=6)
    assert first.prompts() != second.prompts()


def test_the_lane_of_hidden_states_is_an_arm_of_pipelines_that_have_the_option() -> None:
    following, both = named_arms(OMNI, ["next", "both"])
    assert both.settings == ("stages.thinker.options.hidden_states_lane=both",)
    assert following.name == "next"
    with pytest.raises(ConfigError, match="sim-voice has no arm 'both'"):
        named_arms("sim-voice", ["both"])


def test_an_arm_is_a_name_and_settings() -> None:
    assert Arm.parse("wide=stages.talker.replicas=2,server.port=0") == Arm(
        "wide", ("stages.talker.replicas=2", "server.port=0")
    )
    with pytest.raises(ConfigError, match="--arm"):
        Arm.parse("wide=2")


def test_the_timing_is_the_profiles_with_the_operators_settings() -> None:
    timing = timing_of(
        deployment("stages.thinker.replicas=4", "stages.thinker.options.base_ms=7", "stages.talker.max_num_seqs=3"),
        SPOKEN,
        "chat",
    )
    thinker, talker, code2wav = timing.stages
    assert (thinker.replicas, thinker.base_s, thinker.kind) == (4, 0.007, StageKind.SEQUENCES)
    assert (talker.max_num_seqs, talker.outputs_per_input, talker.replicas) == (3, 3.5, 1)
    assert (code2wav.kind, code2wav.row_s, code2wav.rows_per_step) == (StageKind.GENERATOR, 0.08, 25)
    assert [(edge.of_positions, edge.first_rows, edge.rows) for edge in timing.edges] == [(True, 1, 1), (False, 25, 25)]
    assert [stage.name for stage in timing_of(deployment(), frozenset({Modality.TEXT}), "chat").stages] == ["thinker"]


def test_the_ideal_of_one_request_is_what_its_steps_take() -> None:
    settings = ServeSettings(Load(0.01), 1, Task.CHAT_AUDIO, 0, TokenRange(2500, 2500), TokenRange(10, 10))
    values = ideal_values(deployment(), settings)
    prefill_s = 0.012 + 2499 * 0.0001152
    assert values["ttft"] == pytest.approx([prefill_s])
    assert values["tpot"] == pytest.approx([0.012])
    # the talker begins with the second token, and makes 25 of its 35 frames with the prompt's 2,500 positions first
    talker_s = prefill_s + 0.012 + 0.010 + 2499 * 0.00001
    assert values["audio_ttfp"][0] >= talker_s + 24 * 0.010 + 0.040
    assert values["audio_ttfp"][0] <= talker_s + 24 * 0.012 + 0.040
    assert values["audio_duration"] == pytest.approx([35 * 0.08])


def test_pipelines_without_times_have_no_ideal() -> None:
    settings = ServeSettings(Load(1.0), 2)
    assert ideal_values(deployment(pipeline="sim-voice"), settings) == {}
    with pytest.raises(ConfigError, match="has no simulated times"):
        timing_of(deployment(pipeline="sim-voice"), SPOKEN, "chat")
    assert ideal_values(deployment(), ServeSettings(Load(math.inf, max_concurrency=2), 2)) == {}


def test_a_run_that_was_not_measured_leaves_its_point_without_a_figure_and_says_why() -> None:
    runs = [SweepRun(0, 1.0, "a", None, {"ttft": [1.0, 3.0]}, "the load generator was the bottleneck")]
    point = points_of(sweep(), runs, "ttft")[0]
    assert (point.mean_s, point.ideal_mean_s, point.ratio, point.spread) == ([], [2.0], None, None)
    assert point.problems == ["the load generator was the bottleneck"]


def test_ratio_and_spread_of_a_point() -> None:
    point = Point("a", 1.0, mean_s=[1.0, 1.2, 1.1], ideal_mean_s=[1.0, 1.0, 1.0])
    assert point.ratio == pytest.approx(1.1)
    assert point.spread == pytest.approx(0.2 / 1.1)


POINTS = [
    Point("next", 1.0, [0.31, 0.33], [0.5, 0.6], [0.3, 0.3], [0.5, 0.5], [0.01, 0.012], [4e4, 4e4]),
    Point("next", 2.0, [0.4, 0.44], [0.9, 1.0], [0.35, 0.35], [0.7, 0.7], [0.01, 0.01], [4e4, 4e4]),
    Point("both & more", 1.0, [0.5, 0.6], [1.0, 1.2], [0.3, 0.3], [0.5, 0.5], [0.02, 0.03], [7e6, 8e6]),
    Point("both & more", 2.0, problems=["12 of 200 failed"]),
]


def test_a_chart_is_a_png_and_a_page_that_needs_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    png, page = write_chart(Chart("a sweep", "ttft", POINTS, {"talker": 2.5, "vocoder": 90.0}), tmp_path / "sweep")
    assert png.read_bytes().startswith(b"\x89PNG") and png.stat().st_size > 10_000
    text = page.read_text()
    assert "<svg" in text and "both &amp; more" in text and "12 of 200 failed" in text
    assert "src=" not in text and "<script" not in text
    assert "<td>next</td><td>1</td><td>0.320</td><td>0.550</td>" in text and "<td>1.067</td>" in text


def test_a_chart_says_what_the_arms_cost_where_all_were_measured() -> None:
    line = "per request at 1/s: next 11.0 ms of CPU, 40 KB to clients; both & more 25.0 ms of CPU, 7,500 KB to clients"
    assert costs_line(POINTS) == line
    assert costs_line(POINTS[:2]) == ""


def test_a_chart_without_matplotlib_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install -e '.\[plot\]'"):
        write_chart(Chart("a sweep", "ttft", POINTS, {}), tmp_path / "sweep")
