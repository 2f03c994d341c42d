"""A minute of chaos over real processes (`antiphon bench chaos`), with a fixed seed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS, SEED = 60, 4
TIMEOUT_S = 400.0  # on a busy machine starts and rests take several times as long


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple["subprocess.CompletedProcess[str]", dict[str, object]]:
    """The ended command, and what it has written down."""
    out = tmp_path_factory.mktemp("chaos") / "chaos.json"
    command = [sys.executable, "-m", "antiphon", "bench", "chaos", "--out", str(out)]
    command += ["--seconds", str(SECONDS), "--seed", str(SEED)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return ended, json.loads(Path(out).read_text())


def test_every_request_ends_once_and_leaves_nothing_behind_whatever_happens_to_the_processes(run) -> None:
    ended, report = run
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    assert report["is_clean"] is True
    assert " WRONG " not in ended.stdout


def test_the_run_was_one(run) -> None:
    _, report = run
    happened = " ".join(event["what"] for event in report["events"])
    for part in ("SIGKILL to ", "SIGSTOP to ", " has joined", "drain of ", "ending: ", "was at rest"):
        assert part in happened, happened
    rests = int(report["ledger"]["rests at which everything was counted"]["value"])
    assert rests >= 2
    assert report["growths"]
