"""Replicas that join a running server from outside, and leave it. On sim-relay, with the command as it is typed."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.process.conftest import Server, eventually, start_server
from tests.process.metrics_page import metric
from tests.process.relay_server import (
    SLOW_TEXT,
    alive,
    answer,
    child,
    children,
    run_directory,
)

pytestmark = pytest.mark.usefixtures("runtime_dir")


@dataclass
class Joined:
    """A running `antiphon join --stage`, and what it says."""

    process: "subprocess.Popen[str]"
    lines: list[str] = field(default_factory=list)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())

    @property
    def replica(self) -> str:
        return self.lines[0].removesuffix(" has joined")

    @property
    def replica_pid(self) -> int:
        (pid,) = children(self.process.pid)
        return pid


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "antiphon", "join", *arguments]


def join(directory: Path, *arguments: str) -> Joined:
    """Start it, and return when its replica has joined."""
    process = subprocess.Popen(
        command("--to", str(directory), *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd="/",  # not where the server was started
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    joined = Joined(process)
    threading.Thread(target=joined.read, daemon=True).start()
    assert eventually(lambda: any(line.endswith(" has joined") for line in joined.lines), 60.0), joined.lines
    return joined


def run_join(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=60, check=False)


def live(server: Server, stage: str) -> float:
    return metric(server, "replicas_live").get(f'{{stage="{stage}"}}', 0.0)


@pytest.fixture(scope="module")
def server(runtime_dir: Path) -> Iterator[Server]:
    running = start_server("sim-relay", "--set", "timeouts.drain_s=20")
    yield running
    assert running.stop() == 0


def test_a_replica_joins_takes_requests_and_is_drained_without_losing_one(server: Server) -> None:
    joined = join(run_directory(server), "--stage", "encoder")
    assert joined.replica == "encoder/1"
    assert eventually(lambda: live(server, "encoder") == 2.0)
    answers: list[str] = []
    asking = [threading.Thread(target=lambda: answers.append(answer(server, SLOW_TEXT))) for _ in range(4)]
    for thread in asking:
        thread.start()
    assert eventually(lambda: metric(server, "requests_bound").get('{replica="encoder/1",stage="encoder"}', 0.0) == 2.0)
    joined.process.send_signal(signal.SIGTERM)
    for thread in asking:
        thread.join(60)
    assert answers == [SLOW_TEXT.removeprefix("slow:")] * 4
    assert joined.process.wait(30) == 0
    assert joined.lines == ["encoder/1 has joined", "encoder/1 has left"]
    assert eventually(lambda: live(server, "encoder") == 1.0)


def test_drain_takes_any_replica_out_and_what_it_took_out_is_not_started_again(server: Server) -> None:
    directory = run_directory(server)
    joined, first = join(directory, "--stage", "decoder"), child(server, "decoder/0")
    drained = run_join("--drain", "decoder/0", "--to", str(directory))
    assert (drained.returncode, drained.stdout) == (0, "decoder/0 has left\n"), drained.stderr
    assert not alive([first])
    assert answer(server, "hello") == "hello"  # by the one that has joined
    second = join(directory, "--stage", "decoder")
    assert second.replica != joined.replica
    drained = run_join("--drain", joined.replica, "--to", str(directory))
    assert (drained.returncode, drained.stdout) == (0, f"{joined.replica} has left\n"), drained.stderr
    assert joined.process.wait(30) == 0
    assert answer(server, "hello") == "hello"
    assert "antiphon: decoder/0" not in children(server.process.pid).values()


def test_a_joined_replica_has_settings_of_its_own(server: Server) -> None:
    directory = run_directory(server)
    sockets = set(directory.glob("*.sock"))
    refused = run_join("--to", str(directory), "--stage", "encoder", "--set", "stages.encoder.model=/nowhere")
    assert refused.returncode == 1
    (error,) = (line for line in refused.stderr.splitlines() if line.startswith("error: "))
    assert "encoder/" in error and "could not start: StageError" in error and "none at /nowhere" in error
    assert set(directory.glob("*.sock")) <= sockets


def test_a_joined_replica_that_dies_ends_its_join_with_the_reason(server: Server) -> None:
    directory = run_directory(server)
    joined = join(directory, "--stage", "encoder")
    sockets = f"{joined.replica.replace('/', '.')}.*.sock"
    assert list(directory.glob(sockets))
    os.kill(joined.replica_pid, signal.SIGKILL)
    assert joined.process.wait(30) == 1
    assert eventually(lambda: not list(directory.glob(sockets)))
    assert eventually(lambda: joined.lines[-1] == f"error: {joined.replica} died: SIGKILL"), joined.lines
    assert eventually(lambda: live(server, "encoder") == 1.0)
    assert answer(server, "hello") == "hello"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--stage", "encodr"), "error: this server has no stage 'encodr'; it has encoder, decoder\n"),
        (("--drain", "encoder/77"), "error: there is no replica 'encoder/77'; there is "),
        (("--drain", "orchestrator"), "error: there is no replica 'orchestrator'; there is "),
        (
            ("--stage", "encoder", "--set", "server.port=1"),
            "error: server.port is the server's; a replica that joins can set stages.encoder.KEY\n",
        ),
        (("--stage", "encoder", "--set", "stages.encoder.threds=2"), "error: --set: unknown key 'stages.encoder."),
        (("--stage", "encoder", "--device", "tpu"), "error: command line: stages.encoder.device='tpu': expected cpu"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_there_is(server: Server, arguments: tuple[str, ...], line: str) -> None:
    ended = run_join("--to", str(run_directory(server)), *arguments)
    assert ended.returncode == 1
    assert ended.stderr.startswith(line), ended.stderr
    assert ended.stderr.count("\n") == 1


def test_what_is_no_running_server_is_said(runtime_dir: Path, tmp_path: Path) -> None:
    ended = run_join("--stage", "encoder", "--to", str(tmp_path))
    assert (ended.returncode, ended.stderr.partition(";")[0]) == (
        1,
        f"error: {tmp_path} is not the run directory of a server",
    )
    ended = run_join("--stage", "encoder", "--to", "/nowhere")
    assert (ended.returncode, ended.stderr.partition(";")[0]) == (1, "error: /nowhere does not exist (any more)")
    assert run_join("--to", str(tmp_path)).returncode == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, 1)])
def test_a_joined_replica_ends_with_the_server(runtime_dir: Path, number: signal.Signals, code: int) -> None:
    server = start_server("sim-relay")
    directory = run_directory(server)
    joined = join(directory, "--stage", "decoder")
    pids = [*children(server.process.pid), joined.replica_pid]
    server.stop(number)
    assert joined.process.wait(30) == code, joined.lines
    assert eventually(lambda: not alive(pids) and not directory.exists())


def test_a_replica_whose_join_is_killed_dies_with_it_and_the_server_serves_on(server: Server) -> None:
    joined = join(run_directory(server), "--stage", "encoder")
    replica = joined.replica_pid
    joined.process.kill()
    joined.process.wait(30)
    assert eventually(lambda: not alive([replica]))
    assert eventually(lambda: live(server, "encoder") == 1.0)
    assert answer(server, "hello") == "hello"
