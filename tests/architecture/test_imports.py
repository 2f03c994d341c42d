"""The boundaries of the design, as import rules over the source and over running interpreters."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

ORDER = (
    ("errors",),
    ("ids",),
    ("env",),
    ("clauses", "ending"),
    ("config",),
    ("messages",),
    ("transport",),
    ("connector",),
    ("monitor",),
    ("models.registry", "process"),
    ("child",),
    ("orchestrator", "stage", "client"),
    ("models",),
    ("server",),
    ("launch",),
    ("engine",),
    ("",),
    ("bench",),
    ("cli",),
    ("__main__",),
)
"""A unit imports only from itself and from units to its left; units of one rank never import one another. "" is the
package itself, whose lazy exports come from `engine`."""

REACHED_THROUGH_THE_REGISTRY = "models"
MAY_REACH_MODELS = {
    ("antiphon.cli.check", "antiphon.models.voice.weights"),
    ("antiphon.bench.reference", "antiphon.models.voice.weights"),
    ("antiphon.bench.chaos.run", "antiphon.models.simulated.voice_pipeline"),
    ("antiphon.bench.chaos.run", "antiphon.models.simulated.voice_values"),
    ("antiphon.bench.lanes.control", "antiphon.models.simulated.emitter_pipeline"),
    ("antiphon.bench.lanes.emitting", "antiphon.models.simulated.emitter_pipeline"),
    ("antiphon.bench.lanes.http", "antiphon.models.simulated.emitter_pipeline"),
    ("antiphon.bench.lanes.orchestrated", "antiphon.models.simulated.emitter_pipeline"),
    ("antiphon.bench.lanes.outputs", "antiphon.models.simulated.emitter_pipeline"),
    ("antiphon.bench.ideal.profile", "antiphon.models.simulated.profile"),
    ("antiphon.bench.serve.expected", "antiphon.models.simulated.generator"),
    ("antiphon.bench.serve.expected", "antiphon.models.simulated.profile"),
    ("antiphon.bench.serve.expected", "antiphon.models.simulated.row_values"),
    ("antiphon.bench.serve.expected", "antiphon.models.simulated.voice_pipeline"),
    ("antiphon.bench.serve.expected", "antiphon.models.simulated.voice_values"),
    ("antiphon.bench.hf_text", "antiphon.models.hf_text.pipeline"),
    ("antiphon.bench.hf_text", "antiphon.models.hf_text.thinker"),
    ("antiphon.bench.hf_text", "antiphon.models.voice.weights"),
}
"""check asks where the weights are, which is no model; a benchmark calls the same weights in process,
or tells simulated stages what to make and checks it."""

ONLY_IN = {
    "zmq": ("antiphon.bench.lanes.bare",),
    "pydantic": ("antiphon.server",),
    "fastapi": ("antiphon.server",),
    "starlette": ("antiphon.server",),
    "uvicorn": ("antiphon.server", "antiphon.bench.lanes.bare"),
    "torch": ("antiphon.stage", "antiphon.models", "antiphon.bench.hf_text"),
    "onnxruntime": ("antiphon.stage", "antiphon.models", "antiphon.server.realtime.vad"),
    "xllamacpp": ("antiphon.stage", "antiphon.models", "antiphon.bench.reference"),
    "faster_whisper": ("antiphon.models",),
    "matplotlib": ("antiphon.monitor.plot", "antiphon.bench.chart"),
    "hibari": ("antiphon.models", "antiphon.bench.reference"),
}
NEVER_IN = {"antiphon.orchestrator": ("numpy", "torch"), "antiphon.config": ("numpy", "torch")}


@dataclass(frozen=True)
class Import:
    importer: str
    imported: str
    place: str


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def imports_of(module: str, path: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(path.read_text())):
        line = node.lineno if isinstance(node, ast.stmt) else 0
        place = f"{path.relative_to(SOURCE)}:{line}"
        match node:
            case ast.Import():
                for alias in node.names:
                    yield Import(module, alias.name, place)
            case ast.ImportFrom():
                assert node.level == 0, f"{place}: a relative import; name the whole module"
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    yield Import(module, full if full in MODULES else str(node.module), place)


IMPORTS = [found for module, path in MODULES.items() for found in imports_of(module, path)]


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def unit_of(module: str) -> str:
    """The longest name of ORDER that `module` is in."""
    inner = module.removeprefix("antiphon").removeprefix(".")
    names = [name for rank in ORDER for name in rank if name and is_within(inner, name)]
    if inner and not names:
        raise AssertionError(f"{module} has no place in ORDER; give it one")
    return max(names, key=len, default="")


def rank_of(unit: str) -> int:
    return next(index for index, rank in enumerate(ORDER) if unit in rank)


def internal_imports() -> list[Import]:
    return [found for found in IMPORTS if is_within(found.imported, "antiphon")]


def described(found: list[Import]) -> str:
    return "\n".join(sorted({f"{each.place}: {each.importer} imports {each.imported}" for each in found}))


def test_the_source_is_found() -> None:
    assert len(internal_imports()) > 100


def test_imports_go_only_to_the_left_in_the_order_of_the_design() -> None:
    wrong = []
    for found in internal_imports():
        importer, imported = unit_of(found.importer), unit_of(found.imported)
        is_version = found.importer == "antiphon.cli.main" and found.imported == "antiphon"
        if importer != imported and not is_version and rank_of(imported) >= rank_of(importer):
            wrong.append(found)
    assert not wrong, described(wrong)


def test_models_are_reached_only_through_their_registry() -> None:
    wrong = [
        found
        for found in internal_imports()
        if unit_of(found.imported) == REACHED_THROUGH_THE_REGISTRY
        and unit_of(found.importer) != REACHED_THROUGH_THE_REGISTRY
        and (found.importer, found.imported) not in MAY_REACH_MODELS
    ]
    assert not wrong, described(wrong)


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_is_imported_only_where_it_belongs(library: str) -> None:
    wrong = [
        found
        for found in IMPORTS
        if is_within(found.imported, library) and not any(is_within(found.importer, home) for home in ONLY_IN[library])
    ]
    assert not wrong, described(wrong)


@pytest.mark.parametrize("package", NEVER_IN)
def test_a_package_imports_none_of_what_it_must_not_know(package: str) -> None:
    wrong = [
        found
        for found in IMPORTS
        if is_within(found.importer, package) and any(is_within(found.imported, name) for name in NEVER_IN[package])
    ]
    assert not wrong, described(wrong)


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import antiphon.orchestrator.process", ("numpy", "torch", "fastapi", "pydantic", "antiphon.stage")),
        (
            "from antiphon.models.registry import load_pipeline; load_pipeline('voice')",
            ("numpy", "torch", "onnxruntime"),
        ),
        (
            "from antiphon.models.registry import load_pipeline; load_pipeline('sim-qwen3-omni')",
            ("numpy", "torch", "antiphon.stage"),
        ),
        ("import antiphon.models.simulated.sequences, antiphon.stage.engine.sequences", ("torch", "fastapi")),
        ("import antiphon.client.factory", ("fastapi", "pydantic", "antiphon.orchestrator", "antiphon.stage")),
        ("import antiphon.stage.process", ("fastapi", "pydantic", "antiphon.orchestrator", "torch", "onnxruntime")),
        ("import antiphon.launch.launcher", ("torch", "onnxruntime", "fastapi")),
    ],
)
def test_a_process_loads_nothing_that_it_must_not_know(statement: str, unwanted: tuple[str, ...]) -> None:
    script = f"{statement}; import sys; print([name for name in {unwanted!r} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert answer.stdout == "[]\n", f"{statement}: {answer.stdout}{answer.stderr}"
