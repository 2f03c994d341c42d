"""`antiphon check`: can this machine run the voice pipeline, and what is missing.

In: this machine. Out: a table, and exit code 0 if the voice pipeline can run, else 1.
Does not know: how anything is run; it imports neither models nor engines.
"""

import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from antiphon import env
from antiphon.errors import ConfigError

MIN_PYTHON = (3, 11)
MIN_OPEN_FILES = 4096
MIN_MEMORY_BYTES = 1 << 30
_INSTALL_CORE = "in antiphon's checkout, run: pip install -e ."
_INSTALL_VOICE = "in antiphon's checkout, run: pip install -e '.[voice]'"
_INSTALL_HF = "for autoregressive stages, in antiphon's checkout, run: pip install -e '.[hf]'"
_GPU_FOLDER = Path("/proc/driver/nvidia/gpus")

CORE = {
    "av": "av",
    "click": "click",
    "fastapi": "fastapi",
    "httptools": "httptools",
    "msgspec": "msgspec",
    "numpy": "numpy",
    "prometheus-client": "prometheus_client",
    "python-multipart": "python_multipart",
    "PyYAML": "yaml",
    "rich": "rich",
    "setproctitle": "setproctitle",
    "soxr": "soxr",
    "uvicorn": "uvicorn",
    "uvloop": "uvloop",
    "websockets": "websockets",
}
"""Distribution -> the module it brings."""

VOICE = {
    "faster-whisper": "faster_whisper",
    "hibari-tts": "hibari",
    "onnxruntime": "onnxruntime",
    "soundfile": "soundfile",
    "xllamacpp": "xllamacpp",
}

HF = {
    "accelerate": "accelerate",
    "gguf": "gguf",
    "Jinja2": "jinja2",
    "safetensors": "safetensors",
    "torch": "torch",
    "transformers": "transformers",
}
"""Only autoregressive stages need these, and `voice` has none by default."""


class Status(StrEnum):
    """INFO is neither good nor bad; WARNING can serve; MISSING cannot."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    MISSING = "missing"


@dataclass(frozen=True)
class CheckResult:
    """One row: what was looked at, what is there, and what to do about it ("" if nothing)."""

    subject: str
    status: Status
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Machine:
    """What is here. packages: distribution -> version, "" if it cannot be imported. models: name -> path or problem."""

    python: tuple[int, int, int]
    num_cores: int
    num_machine_cores: int
    memory_bytes: int
    available_bytes: int
    shm_bytes: int
    max_open_files: int
    packages: dict[str, str]
    models: dict[str, Path | ConfigError]
    gpus: tuple[str, ...] | None = None
    """None: not looked at, since torch is not installed."""


@click.command("check")
def command() -> None:
    """Check whether this machine can run the voice pipeline, and say what to install."""
    results = judge(look_around())
    Console().print(result_table(results))
    sys.exit(0 if can_serve(results) else 1)


def look_around() -> Machine:
    """Everything that the checks need, without importing anything heavy."""
    memory = _memory_info()
    limit = env.memory_limit_bytes()
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Machine(
        python=sys.version_info[:3],
        num_cores=env.cpu_count(),
        num_machine_cores=os.cpu_count() or 1,
        memory_bytes=min(memory["MemTotal"], limit or memory["MemTotal"]),
        available_bytes=min(memory["MemAvailable"], limit or memory["MemAvailable"]),
        shm_bytes=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else 0,
        max_open_files=sys.maxsize if soft == resource.RLIM_INFINITY else soft,
        packages={name: installed_version(name, module) for name, module in (CORE | VOICE | HF).items()},
        models=find_models(),
        gpus=_gpus() if importlib.util.find_spec("torch") is not None else None,
    )


def judge(machine: Machine) -> tuple[CheckResult, ...]:
    """The rows of the table: pure."""
    return (
        _judge_python(machine.python),
        CheckResult("cores", Status.OK, f"{machine.num_cores} of {machine.num_machine_cores} usable"),
        _judge_memory(machine),
        CheckResult("/dev/shm", Status.INFO, f"{_size(machine.shm_bytes)} (not needed: chunks travel in memfd memory)"),
        _judge_open_files(machine.max_open_files),
        _judge_packages("packages: core", CORE, machine.packages, _INSTALL_CORE),
        _judge_packages("packages: voice", VOICE, machine.packages, _INSTALL_VOICE),
        _judge_packages("packages: hf", HF, machine.packages, _INSTALL_HF, without=Status.INFO),
        *(_judge_model(name, found) for name, found in machine.models.items()),
        *([CheckResult("GPUs", Status.INFO, ", ".join(machine.gpus) or "none")] if machine.gpus is not None else []),
    )


def can_serve(results: tuple[CheckResult, ...]) -> bool:
    """True if nothing that the voice pipeline needs is missing."""
    return all(result.status is not Status.MISSING for result in results)


def result_table(results: tuple[CheckResult, ...]) -> Table:
    """The results as they are printed."""
    styles = {Status.OK: "green", Status.INFO: "dim", Status.WARNING: "yellow", Status.MISSING: "red"}
    verdict = "the voice pipeline can run" if can_serve(results) else "the voice pipeline cannot run yet"
    table = Table("what", "status", "found", "what to do", title="antiphon check", caption=verdict)
    for result in results:
        status = f"[{styles[result.status]}]{result.status}[/]"
        table.add_row(result.subject, status, escape(result.found), escape(result.remedy))
    return table


def installed_version(distribution: str, module: str) -> str:
    """The version of `distribution` if `module` can be imported, else ""; imports nothing."""
    if importlib.util.find_spec(module) is None:
        return ""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "version unknown"


def find_models() -> dict[str, Path | ConfigError]:
    """Where each model of the voice pipeline is, or the error that says what to install."""
    from antiphon.models.voice import weights

    return {
        "model: thinker (SmolLM2-135M)": _found(weights.smollm2_gguf),
        "model: talker (hibari)": _found(_hibari_onnx),
        "model: listener (whisper-tiny)": _found(weights.whisper_tiny),
    }


def _found(locate: Callable[[], str]) -> Path | ConfigError:
    try:
        return Path(locate())
    except ConfigError as error:
        return error


def _hibari_onnx() -> str:
    spec = importlib.util.find_spec("hibari")
    path = Path(spec.origin).parent / "assets" / "hibari.onnx" if spec is not None and spec.origin else None
    if path is None or not path.is_file():
        raise ConfigError([f"hibari.onnx of the package hibari-tts is not there; {_INSTALL_VOICE}"])
    return str(path)


def _judge_python(version: tuple[int, int, int]) -> CheckResult:
    found = f"{platform.python_implementation()} {'.'.join(map(str, version))}"
    if version < MIN_PYTHON:
        return CheckResult("Python", Status.MISSING, found, f"install Python {'.'.join(map(str, MIN_PYTHON))} or newer")
    return CheckResult("Python", Status.OK, found)


def _judge_memory(machine: Machine) -> CheckResult:
    found = f"{_size(machine.available_bytes)} free of {_size(machine.memory_bytes)}"
    if machine.available_bytes < MIN_MEMORY_BYTES:
        return CheckResult("memory", Status.WARNING, found, f"make {_size(MIN_MEMORY_BYTES)} free for the models")
    return CheckResult("memory", Status.OK, found)


def _judge_open_files(limit: int) -> CheckResult:
    found = "unlimited" if limit == sys.maxsize else str(limit)
    if limit < MIN_OPEN_FILES:
        return CheckResult("open files", Status.WARNING, found, f"run: ulimit -n {MIN_OPEN_FILES}")
    return CheckResult("open files", Status.OK, found)


def _judge_packages(
    subject: str, wanted: dict[str, str], versions: dict[str, str], install: str, without: Status = Status.MISSING
) -> CheckResult:
    missing = [name for name in wanted if not versions[name]]
    if missing:
        return CheckResult(subject, without, f"not there: {', '.join(missing)}", install)
    return CheckResult(subject, Status.OK, ", ".join(f"{name} {versions[name]}" for name in wanted))


def _judge_model(name: str, found: Path | ConfigError) -> CheckResult:
    match found:
        case ConfigError():
            return CheckResult(name, Status.MISSING, "not there", found.message)
        case Path():
            return CheckResult(name, Status.OK, f"{found.parent.name}/{found.name}")


def _memory_info() -> dict[str, int]:
    """/proc/meminfo in bytes."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {parts[0].rstrip(":"): int(parts[1]) * 1024 for parts in lines}


def _gpus() -> tuple[str, ...]:
    """Names of the NVIDIA GPUs, as the driver tells them."""
    information = (path.read_text() for path in sorted(_GPU_FOLDER.glob("*/information")))
    lines = (line for text in information for line in text.splitlines())
    return tuple(line.partition(":")[2].strip() for line in lines if line.startswith("Model:"))


def _size(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.1f} GiB"
