"""Pipelines by name, by module and by file; what is wrong with a reference is said, never raised as something else."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.config.pipeline_check import check_pipeline
from antiphon.errors import ConfigError
from antiphon.models.registry import BUILT_IN, load_attribute, load_pipeline
from antiphon.models.voice.pipeline import PIPELINE as VOICE

PIPELINE_FILE = """
from antiphon.config.pipeline import PipelineSpec
PIPELINE = PipelineSpec({name!r}, (), (), (), __file__ + ":Frontend")
class Frontend:
    pass
"""


def problem_of(reference: str) -> str:
    with pytest.raises(ConfigError) as raised:
        load_pipeline(reference)
    (problem,) = raised.value.problems
    return problem


def test_a_built_in_pipeline_is_found_by_its_name_and_by_its_module() -> None:
    assert load_pipeline("voice") is VOICE
    assert load_pipeline("antiphon.models.voice.pipeline:PIPELINE") is VOICE


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_built_in_pipeline_is_valid(name: str) -> None:
    check_pipeline(load_pipeline(name))


def test_a_pipeline_in_a_file_is_found_with_its_classes(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(PIPELINE_FILE.format(name="mine"))
    pipeline = load_pipeline(f"{file}:PIPELINE")
    assert pipeline.name == "mine"
    frontend = load_attribute(pipeline.frontend)
    assert isinstance(frontend, type) and frontend.__name__ == "Frontend"
    assert load_pipeline(f"{file}:PIPELINE") is pipeline, "one file is one module"


def test_two_files_of_one_name_are_two_pipelines(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "pipeline.py").write_text(PIPELINE_FILE.format(name=folder))
    names = [load_pipeline(f"{tmp_path / folder / 'pipeline.py'}:PIPELINE").name for folder in ("a", "b")]
    assert names == ["a", "b"]


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("voic", "there is no pipeline 'voic'; did you mean 'voice'?"),
        ("zzz", "there is no pipeline 'zzz'; there is voice"),
        ("antiphon.no_such_module:PIPELINE", "there is no module 'antiphon.no_such_module'; install it, or mend"),
        ("antiphon.models.voice.pipeline:NOTHING", "has no 'NOTHING'"),
        ("antiphon.models.voice.pipeline:SAMPLE_RATE", "is a int, not a PipelineSpec"),
        ("nowhere/mine.py:PIPELINE", "there is no pipeline file nowhere/mine.py"),
        (":PIPELINE", "':PIPELINE' is not a reference; write package.module:NAME or file.py:NAME"),
        ("antiphon.models.voice.pipeline:", "is not a reference"),
        (".pipeline:PIPELINE", "is not a reference"),
    ],
)
def test_a_wrong_reference_is_explained(reference: str, problem: str) -> None:
    assert problem in problem_of(reference)


def test_a_class_reference_without_a_name_is_explained() -> None:
    with pytest.raises(ConfigError, match="'nonsense' is not a reference"):
        load_attribute("nonsense")


@pytest.mark.parametrize(
    ("text", "problem"),
    [("PIPELINE = (", "'(' was never closed"), ("import no_such_package_of_ours", "no_such_package_of_ours")],
)
def test_a_file_that_cannot_be_imported_is_explained_and_can_be_mended(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text)
    found = problem_of(f"{file}:PIPELINE")
    assert found.startswith(f"pipeline file {file} cannot be imported: ") and problem in found
    file.write_text(PIPELINE_FILE.format(name="mended pipeline"))
    assert load_pipeline(f"{file}:PIPELINE").name == "mended pipeline"


@given(st.text(alphabet="apy.:/_ é\x00", max_size=12))
def test_any_text_as_a_reference_is_a_config_error(reference: str) -> None:
    problem_of(reference)
