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

from tests.process.conftest import Server, eventually, start_server
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
)

pytestmark = pytest.mark.usefixtures("runtime_dir")
SOON_S = 5.0


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
    shared_before = set(os.listdir("/dev/shm"))
    server = start_server("sim-relay")
    asked_with(server, SLOW_TEXT * 9)  # so that chunks are in flight
    pids, directory = list(children(server.process.pid)), run_directory(server)
    kill(victims_of(server)[killed])
    ended_with = server.process.wait(SOON_S)
    assert ended_with == (-signal.SIGKILL if "launcher" in killed else 1)
    assert eventually(lambda: is_gone(pids, directory), SOON_S), (alive(pids), list(runtime_dir.rglob("*")))
    assert set(os.listdir("/dev/shm")) <= shared_before


def test_nothing_is_left_when_the_launcher_is_killed_while_its_processes_start(runtime_dir: Path) -> None:
    command = [sys.executable, "-m", "antiphon", "serve", "sim-relay", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as launcher:
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


def test_a_process_that_keeps_dying_ends_the_server_with_one_line_that_says_how_often_and_how(
    capfd: pytest.CaptureFixture[str],
) -> None:
    settings = ("restarts.max_restarts=1", "restarts.backoff_s=0", "timeouts.startup_s=12")
    server = start_server("sim-relay", *(word for setting in settings for word in ("--set", setting)))
    pids, first = list(children(server.process.pid)), child(server, "decoder/0")
    kill([first])

    def started_again() -> list[int]:
        return [pid for pid, name in children(server.process.pid).items() if "decoder" in name and pid != first]

    assert eventually(lambda: bool(started_again()))
    os.kill(started_again()[0], signal.SIGSTOP)  # it will never be ready
    assert server.process.wait(30) == 1
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
    assert server.stop(timeout_s=10.0) == 0
    assert is_gone(pids, directory)
