"""A stage's options: declared by the pipeline with type and range, set as any other key, refused where wrong."""

import pytest

from antiphon.config.pipeline import EngineKind, OptionSpec, OptionValue, PipelineSpec, StageSpec
from antiphon.config.pipeline_check import check_pipeline
from antiphon.config.resolve import Deployment, change, parse_settings, resolve
from antiphon.errors import ConfigError

OPTIONS = (
    OptionSpec("pace", 1.5),
    OptionSpec("rows", 4, least=1),
    OptionSpec("lane", "next", choices=("next", "both")),
    OptionSpec("loud", False),
)
STAGES = (
    StageSpec("maker", EngineKind.GENERATION, "nowhere:Maker", options=OPTIONS),
    StageSpec("taker", EngineKind.GENERATION, "nowhere:Taker"),
)
PIPELINE = PipelineSpec("mine", STAGES, (), (), "nowhere:Frontend")


def deploy(*assignments: str) -> Deployment:
    return resolve("mine", PIPELINE, settings=parse_settings(assignments))


def options(*assignments: str) -> dict[str, OptionValue]:
    return deploy(*assignments).config.stages["maker"].options


def test_with_nothing_set_every_option_has_the_pipelines_value() -> None:
    assert options() == {"pace": 1.5, "rows": 4, "lane": "next", "loud": False}
    assert deploy().config.stages["taker"].options == {}


def test_an_option_is_set_as_any_other_key_and_a_whole_number_may_stand_for_a_float() -> None:
    path = "stages.maker.options"
    changed = options(f"{path}.pace=3", f"{path}.rows=1", f"{path}.lane=both", f"{path}.loud=true")
    assert changed == {"pace": 3, "rows": 1, "lane": "both", "loud": True}


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [
        ("maker.options.pase=1", "unknown key 'stages.maker.options.pase'; at stages.maker.options there is 'pace'"),
        ("taker.options.pace=1", "at stages.taker.options there is nothing"),
        ("maker.options.pace=fast", "stages.maker.options.pace='fast': expected float"),
        ("maker.options.pace=-0.1", "expected at least 0"),
        ("maker.options.pace=.inf", "expected at least 0"),
        ("maker.options.pace=.nan", "expected at least 0"),
        ("maker.options.rows=0", "stages.maker.options.rows=0: expected at least 1"),
        ("maker.options.rows=1.5", "expected int"),
        ("maker.options.rows=true", "expected int"),
        ("maker.options.lane=last", "stages.maker.options.lane='last': expected one of next, both"),
        ("maker.options.loud=1", "expected bool"),
        ("maker.options=1", "stages.maker.options is a group"),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_right(assignment: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        deploy(f"stages.{assignment}")
    assert len(raised.value.problems) == 1 and problem in raised.value.problems[0]


def test_a_running_servers_options_can_be_changed_for_a_replica_that_joins() -> None:
    changed = change(deploy("stages.maker.options.rows=2"), parse_settings(("stages.maker.options.pace=9.0",)))
    assert changed.config.stages["maker"].options == {"pace": 9.0, "rows": 2, "lane": "next", "loud": False}


def test_an_option_whose_own_default_is_wrong_is_a_problem_of_the_pipeline() -> None:
    wrong = (OptionSpec("lane", "sideways", choices=("next",)), OptionSpec("rows", 0, least=1), OptionSpec("rows", 2))
    stage = StageSpec("maker", EngineKind.GENERATION, "nowhere:Maker", options=wrong)
    with pytest.raises(ConfigError) as raised:
        check_pipeline(PipelineSpec("mine", (stage,), (), (), "nowhere:Frontend"))
    assert len(raised.value.problems) == 3
