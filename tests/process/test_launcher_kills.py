"""Whatever is killed, nothing is left: no process, no file. And what dies is started again, but not for ever."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from tests.process.conftest import Server, eventually, killed_at_the_end, start_server
from tests.process.metrics_page import metric
from tests.process.relay_server import (
    CHILDREN,
    SLOW_TEXT,
    alive,
    answer,
    ask,
    child,
    children,
    run_directory,
    shared_files,
)

pytestmark = pytest.mark.usefixtures("runtime_dir")
SOON_S = 20.0


def kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def asked_with(server: Server, text: str) -> None:
    """Returns when the request runs; its answer does not matter."""

    def run() -> None:
        with contextlib.suppress(httpx.HTTPError):
            ask(server, text)

    threading.Thread(target=run, daemon=True).start()
    assert eventually(lambda: any(metric(server, "requests_bound").values()))


def is_gone(pids: list[int], directory: Path) -> bool:
    return not alive(pids) and not directory.exists()


def victims_of(server: Server) -> dict[str, list[int]]:
    of_children = children(server.process.pid)
    orchestrator = child(server, "orchestrator")
    return {
        "the launcher": [server.process.pid],
        "the orchestrator": [orchestrator],
        "the launcher and the orchestrator": [server.process.pid, orchestrator],
        "every child": [pid for pid, name in of_children.items() if name != "antiphon: cleaner"],
    }


@pytest.mark.parametrize(
    "killed", ["the launcher", "the orchestrator", "the launcher and the orchestrator", "every child"]
)
def test_nothing_is_left_after_kill_9_of(runtime_dir: Path, killed: str) -> None:
    server = start_server("sim-relay")
    asked_with(server, SLOW_TEXT * 9)  # so that chunks are in flight
    pids, directory = list(children(server.process.pid)), run_directory(server)
    shared = shared_files([server.process.pid, *pids])
    kill(victims_of(server)[killed])
    ended_with = server.process.wait(SOON_S)
    assert ended_with == (-signal.SIGKILL if "launcher" in killed else 1)
    assert eventually(lambda: is_gone(pids, directory), SOON_S), (alive(pids), list(runtime_dir.rglob("*")))
    assert not any(file.exists() for file in shared), shared


NEVER_READY = """
import dataclasses
from antiphon.models.simulated.pipeline import DECODER, PIPELINE as WHOLE
decoder = dataclasses.replace(DECODER, model={model!r})
PIPELINE = dataclasses.replace(WHOLE, stages=(WHOLE.stages[0], decoder))
"""


def test_nothing_is_left_when_the_launcher_is_killed_while_its_processes_start(
    runtime_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "decoder.py").write_text("import time\ntime.sleep(600)\n")
    (tmp_path / "pipeline.py").write_text(NEVER_READY.format(model=f"{tmp_path}/decoder.py:Decoder"))
    command = [sys.executable, "-m", "antiphon", "serve", f"{tmp_path}/pipeline.py:PIPELINE", "--port", "0"]
    with killed_at_the_end(subprocess.Popen(command, stdout=subprocess.PIPE)) as launcher:
        assert eventually(lambda: len(children(launcher.pid)) == len(CHILDREN))
        pids = list(children(launcher.pid))
        kill([launcher.pid])
        assert launcher.stdout is not None and launcher.stdout.read() == b""  # it was not ready
    assert eventually(lambda: not alive(pids) and list(runtime_dir.iterdir()) == [])


def test_servers_do_not_touch_one_another_and_the_next_start_sweeps_what_a_killed_cleaner_has_left(
    runtime_dir: Path,
) -> None:
    first, second = start_server("sim-relay"), start_server("sim-relay")
    first_pids, first_directory = list(children(first.process.pid)), run_directory(first)
    second_pids, second_directory = list(children(second.process.pid)), run_directory(second)
    kill([first.process.pid])
    first.process.wait(SOON_S)
    assert eventually(lambda: is_gone(first_pids, first_directory), SOON_S)
    assert answer(second, "still here") == "still here"
    assert sorted(children(second.process.pid)) == sorted(second_pids)

    kill([child(second, "cleaner"), second.process.pid])
    second.process.wait(SOON_S)
    assert eventually(lambda: not alive(second_pids), SOON_S)
    assert second_directory.exists()  # nobody was left to remove it
    third = start_server("sim-relay")
    assert not second_directory.exists()
    assert run_directory(third).exists()
    assert third.stop() == 0
    assert list(runtime_dir.iterdir()) == []


STARTS_ONCE = """#!/bin/sh
mkdir {directory}/started 2>/dev/null && exec {python} "$@"
exec sleep 600
"""


def test_a_process_that_keeps_dying_ends_the_server_with_one_line_that_says_how_often_and_how(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "python"
    python.write_text(STARTS_ONCE.format(directory=tmp_path, python=sys.executable))
    python.chmod(0o755)
    settings = ("restarts.max_restarts=1", "restarts.backoff_s=0", "timeouts.startup_s=12")
    settings += (f"stages.decoder.python={python}",)
    server = start_server("sim-relay", *(word for setting in settings for word in ("--set", setting)))
    pids = list(children(server.process.pid))
    kill([child(server, "decoder/0")])  # the next will never be ready
    assert server.process.wait(60) == 1
    (error,) = (line for line in capfd.readouterr().err.splitlines() if line.startswith("error: "))
    late = "SIGKILL: it was not ready in timeouts.startup_s = 12 s once"
    assert error.startswith(f"error: decoder/0 died 2 times (SIGKILL once, {late}); giving up"), error
    assert alive(pids) == []


def test_a_second_signal_ends_the_server_at_once_although_requests_are_open(runtime_dir: Path) -> None:
    server = start_server("sim-relay", "--drain-timeout", "600")
    asked_with(server, SLOW_TEXT * 50)
    pids, directory = list(children(server.process.pid)), run_directory(server)
    server.process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        server.process.wait(2.0)  # it waits for the request
    assert server.stop() == 0
    assert is_gone(pids, directory)
