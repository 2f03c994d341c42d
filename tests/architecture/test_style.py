"""How the code must read, as far as a parser can tell: sizes, broad excepts, feature discovery, return types."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 500

MAY_CATCH_EVERYTHING = {
    "antiphon/monitor/faults.py": 1,  # the monitor never raises into the orchestrator
    "antiphon/process.py": 1,  # the edge of a process's start: the launcher is told why
    "antiphon/server/edge.py": 1,  # the edge of an HTTP handler
    "antiphon/server/sse.py": 1,  # the edge of an HTTP handler whose status is already sent
    "antiphon/stage/engine/guard.py": 1,  # a model's fault ends a request, never the process
}
"""File -> how many `except Exception` it may have. Add one only with its reason."""

FORBIDDEN_FILE_NAMES = {"utils.py", "helpers.py", "common.py", "misc.py"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
TREES = {str(path.relative_to(SOURCE)): ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


def functions() -> Iterator[tuple[str, Function]]:
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                yield f"{name}:{node.lineno} {node.name}", node


def calls_of(function_name: str) -> Iterator[tuple[str, ast.Call]]:
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function_name:
                yield f"{name}:{node.lineno}", node


def catches_everything(handler: ast.ExceptHandler) -> bool:
    """`except:`, `except Exception`, or a tuple with it; a handler that only cleans up and raises again is fine."""
    if isinstance(handler.body[-1], ast.Raise) and handler.body[-1].exc is None:
        return False
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(
        name is None or (isinstance(name, ast.Name) and name.id in ("Exception", "BaseException")) for name in caught
    )


def test_no_function_is_too_long_to_read() -> None:
    too_long = [
        f"{place}: {node.end_lineno - node.lineno + 1} lines"
        for place, node in functions()
        if node.end_lineno is not None and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert not too_long, "\n".join(too_long)


def test_no_file_is_too_long_to_read() -> None:
    lengths = {name: len((SOURCE / name).read_text().splitlines()) for name in TREES}
    too_long = [f"{name}: {lines} lines" for name, lines in lengths.items() if lines > MAX_FILE_LINES]
    assert not too_long, "\n".join(too_long)


def test_everything_is_caught_only_where_it_is_allowed() -> None:
    found: dict[str, list[int]] = {}
    for name, tree in TREES.items():
        lines = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.ExceptHandler) and catches_everything(n)]
        if len(lines) > MAY_CATCH_EVERYTHING.get(name, 0):
            found[name] = lines
    assert not found, f"except Exception outside the list: {found}"


def test_the_list_of_broad_excepts_names_no_file_that_needs_none() -> None:
    unneeded = [
        name
        for name in MAY_CATCH_EVERYTHING
        if name not in TREES
        or not any(isinstance(node, ast.ExceptHandler) and catches_everything(node) for node in ast.walk(TREES[name]))
    ]
    assert not unneeded, unneeded


@pytest.mark.parametrize(("function", "num_arguments"), [("hasattr", 2), ("getattr", 3)])
def test_features_are_declared_not_discovered(function: str, num_arguments: int) -> None:
    found = [place for place, call in calls_of(function) if len(call.args) >= num_arguments]
    assert not found, f"{function} at {', '.join(found)}"


def test_every_function_says_what_it_returns() -> None:
    silent = [place for place, node in functions() if node.returns is None]
    assert not silent, "\n".join(silent)


def test_every_module_with_code_says_what_it_is_for() -> None:
    silent = [name for name, tree in TREES.items() if tree.body and not ast.get_docstring(tree)]
    assert not silent, "\n".join(silent)


def test_no_file_has_a_name_that_means_anything() -> None:
    found = [name for name in TREES if Path(name).name in FORBIDDEN_FILE_NAMES]
    assert not found, found
