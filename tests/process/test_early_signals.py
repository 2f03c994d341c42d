"""A server that is told to stop while it starts ends without a word and leaves nothing, whatever it was doing."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.conftest import eventually, killed_at_the_end
from tests.process.relay_server import CHILDREN, alive, children, cmdline

pytestmark = pytest.mark.usefixtures("runtime_dir")
_END_S = 20.0
_LOOK_S = 0.0005


def handles_sigterm(pid: int) -> bool:
    """The process has a handler for it; by itself Python has one for SIGINT only."""
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) & 1 << (signal.SIGTERM - 1))


def run_directories() -> list[Path]:
    return list(Path(os.environ["ANTIPHON_RUNTIME_DIR"]).glob("antiphon-*"))


def num_children(pid: int) -> int:
    """Those that have taken their names."""
    return len([title for title in children(pid).values() if title.startswith("antiphon: ")])


MOMENTS: dict[str, Callable[[int], bool]] = {
    "its first line runs": handles_sigterm,
    "it has its name": lambda pid: "antiphon: serve" in cmdline(pid),
    "its run directory is there": lambda pid: bool(run_directories()),
    "its first child is there": lambda pid: len(children(pid)) > 1,
    "its last child is there": lambda pid: len(children(pid)) == len(CHILDREN),
    "a child has its name": lambda pid: num_children(pid) > 1,
}
CASES = [(moment, signal.SIGINT) for moment in MOMENTS] + [(moment, signal.SIGTERM) for moment in list(MOMENTS)[::2]]


@pytest.mark.parametrize(("moment", "number"), CASES)
def test_a_server_that_is_told_to_stop_ends_without_a_word_as_soon_as(
    runtime_dir: Path, moment: str, number: signal.Signals
) -> None:
    shared_before = set(os.listdir("/dev/shm"))
    command = [sys.executable, "-m", "antiphon", "serve", "sim-relay", "--port", "0"]
    environment = {**os.environ, "ANTIPHON_LOG_LEVEL": "ERROR"}
    serving = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, process_group=0
    )
    with killed_at_the_end(serving) as launcher:
        while not MOMENTS[moment](launcher.pid):
            assert launcher.poll() is None
            time.sleep(_LOOK_S)
        pids = list(children(launcher.pid))
        os.killpg(launcher.pid, number)  # as Ctrl-C does; SIGTERM so from some supervisors
        said = launcher.communicate(timeout=_END_S)
    assert (launcher.returncode, *said) == (0, "", "")
    assert eventually(lambda: not alive(pids) and not list(runtime_dir.iterdir()))
    assert set(os.listdir("/dev/shm")) <= shared_before


def test_another_command_that_is_told_to_stop_before_it_runs_says_by_its_exit_code_that_it_did_not() -> None:
    command = [sys.executable, "-m", "antiphon", "plan", "sim-relay"]
    command_line = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with killed_at_the_end(command_line) as planning:
        while not handles_sigterm(planning.pid):
            assert planning.poll() is None
        planning.send_signal(signal.SIGTERM)
        said = planning.communicate(timeout=_END_S)
    assert (planning.returncode, *said) in ((143, "", ""), (-signal.SIGTERM, "", ""))
