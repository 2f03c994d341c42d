"""What a child says when it cannot start: one line, and what to install. What its malloc keeps."""

import json
import os
import platform
import subprocess
import sys

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


FAULTS_OF_STEPS = """
import resource
import numpy as np
from antiphon.process import keep_freed_memory

def step():
    rows = [np.ones(16 << 20, np.uint8) for _ in range(4)]

def num_faults():
    step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step()
    step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

usual = num_faults()
keep_freed_memory()
print(usual, num_faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc")
def test_what_a_step_frees_is_there_for_the_next_one_without_a_fault() -> None:
    answer = subprocess.run([sys.executable, "-c", FAULTS_OF_STEPS], capture_output=True, text=True, check=True)
    usual, kept = map(int, answer.stdout.split())
    assert kept < usual / 4
