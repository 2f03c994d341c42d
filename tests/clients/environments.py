"""The clients' own environments, as `make clients` lays them under .venv-clients/.

In: a client's name. Out: the path of its programs, or a skipped test that says what to do. Does not know: the clients.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.missing import missing

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv-clients"
_TIMEOUT_S = 240.0


def program(client: str, name: str = "python") -> str:
    """The path of a program in the client's environment."""
    folder = FOLDER / client
    if not (folder / ".installed").exists():
        missing(f"the client {client} is not installed; `make clients` does it")
    return str(folder / "bin" / name)


def node_folder() -> Path:
    """Where the npm client lies; the test is skipped where there is no node."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed; it is needed for OpenAI's npm client")
    program("npm")
    return FOLDER / "npm"


def run(*command: str, cwd: Path | None = None, **variables: str) -> str:
    """What the command prints; the test fails with everything it said if it fails. Nothing is fetched."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "PYTHONPATH": "", **variables}
    ran = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    assert ran.returncode == 0, f"{command}: {ran.stdout[-4000:]}\n{ran.stderr[-4000:]}"
    return ran.stdout


def report(*command: str, cwd: Path | None = None) -> dict:
    """The JSON object in the last line that the command prints."""
    return json.loads(run(*command, cwd=cwd).splitlines()[-1])
