"""What a child says when it cannot start: one line, and what to install."""

import json
import os

import pytest

from antiphon.errors import ConfigError
from antiphon.process import ChildProcess


def said(error: Exception) -> str:
    read_fd, write_fd = os.pipe()
    with pytest.raises(SystemExit) as ended, ChildProcess("talker/0", write_fd).reporting_failure():
        raise error
    assert ended.value.code == 1
    with os.fdopen(read_fd) as pipe:
        (line,) = pipe
    return str(json.loads(line)["error"])


def missing(module: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named {module!r}", name=module)


def test_an_error_of_several_lines_becomes_one() -> None:
    assert said(RuntimeError("CUDA error:\n  no device\n\n")) == "RuntimeError: CUDA error: no device"


@pytest.mark.parametrize(
    ("module", "advice"),
    [
        ("torch", "; in antiphon's checkout, run: pip install -e '.[hf]'"),
        ("transformers.models", "; in antiphon's checkout, run: pip install -e '.[hf]'"),
        ("faster_whisper", "; in antiphon's checkout, run: pip install -e '.[voice]'"),
        ("hibari", "; in antiphon's checkout, run: pip install -e '.[voice]'"),
        ("nobody_knows_it", "'nobody_knows_it'"),
    ],
)
def test_a_missing_module_names_the_extra_that_brings_it(module: str, advice: str) -> None:
    assert said(missing(module)).endswith(advice)
    wrapped = ConfigError(["the stage cannot be imported"])
    wrapped.__cause__ = missing(module)
    assert said(wrapped).startswith("ConfigError: the stage cannot be imported")
    assert said(wrapped).endswith(advice if "antiphon" in advice else "imported")


def test_only_an_error_that_was_not_meant_leaves_a_traceback_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    said(ConfigError(["model path /nowhere does not exist"]))
    assert capsys.readouterr().err == ""
    said(RuntimeError("a surprise"))
    assert "Traceback" in capsys.readouterr().err
