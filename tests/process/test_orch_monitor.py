"""The orchestrator's monitor on real servers of sim-voice: what its file says of a load, what a kill leaves of it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from antiphon import Engine
from antiphon.monitor.lines import lines_path
from tests.process.conftest import Server, eventually, start_server
from tests.process.relay_server import child

TEXT = "This takes its time. " * 20
RUN_S, STOPPED_S = 0.01, 1.5
NUM_WINDOWS = 7


@pytest.fixture
def target(tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "load.json"
    monkeypatch.setenv("ANTIPHON_ORCH_MONITOR_PATH", str(path))
    return path


@contextmanager
def load(server: Server, num_clients: int) -> Iterator[list[int]]:
    """Clients that speak TEXT again and again; gives the status codes so far."""
    over, codes = threading.Event(), []

    def ask() -> None:
        body = {"model": "sim-voice", "input": TEXT, "response_format": "pcm"}
        with httpx.Client(timeout=60) as client:
            while not over.is_set():
                codes.append(client.post(f"{server.url}/v1/audio/speech", json=body).status_code)

    clients = [threading.Thread(target=ask) for _ in range(num_clients)]
    for client in clients:
        client.start()
    try:
        yield codes
    finally:
        over.set()
        for client in clients:
            client.join(60)


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """The process stands still for 1.5 s, runs for 10 ms, and so on."""
    over = threading.Event()

    def slow() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(STOPPED_S)
            os.kill(pid, signal.SIGCONT)
            time.sleep(RUN_S)

    slowing = threading.Thread(target=slow)
    slowing.start()
    try:
        yield
    finally:
        over.set()
        slowing.join()


def monitor(*arguments: str | Path) -> str:
    """What `antiphon monitor ARGUMENTS` prints."""
    command = [sys.executable, "-m", "antiphon", "monitor", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def num_lines_of(target: Path) -> int:
    path = lines_path(target)
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_windows(target: Path, number: int) -> None:
    """Return when so many more windows have been written."""
    num_lines = num_lines_of(target) + number
    assert eventually(lambda: num_lines_of(target) >= num_lines, 120.0)


def column_lengths(found: dict) -> set[int]:
    groups = [found["windows"], *found["replicas"].values(), *found["edges"].values()]
    return {len(values) for group in groups for values in group.values()}


@pytest.mark.parametrize("stage", ["talker", "code2wav"])
def test_the_verdict_names_the_stage_that_is_saturated(target: Path, stage: str) -> None:
    server = start_server("sim-voice", "--enable-orch-monitor", "--set", f"stages.{stage}.max_num_seqs=1")
    with load(server, 8) as codes:
        wait_for_windows(target, NUM_WINDOWS)
    assert lines_path(target).exists() and not target.exists()
    assert server.stop() == 0
    assert set(codes) == {200}
    assert target.exists() and not lines_path(target).exists()
    found = json.loads(target.read_text())
    assert column_lengths(found) == {len(found["windows"]["duration_s"])}
    replica = found["replicas"][f"stage={stage},replica=0"]
    assert max(replica["inflight"]) >= 4 and replica["inflight"][-1] == 0
    assert sum(found["windows"]["loop_active"]) > 0
    verdict = monitor("show", target).splitlines()[-1]
    assert verdict.startswith(f"verdict: {stage} is the bottleneck: 1 of 1 replicas saturated"), verdict


def test_a_slowed_orchestrator_is_named_and_a_kill_loses_at_most_a_window(target: Path) -> None:
    server = start_server("sim-voice", "--enable-orch-monitor", "--set", "monitor.window_s=0.5")
    orchestrator = child(server, "orchestrator")
    with load(server, 6) as codes, slowed(orchestrator):
        began_s = time.time()
        wait_for_windows(target, NUM_WINDOWS)
    over_s = time.time()
    wait_for_windows(target, 2)  # the first may have ended before
    num_lines = num_lines_of(target)
    os.kill(orchestrator, signal.SIGKILL)
    assert server.process.wait(30) == 1
    assert set(codes) == {200}
    assert not target.exists()
    assert "written to" in monitor("convert", lines_path(target))
    found = json.loads(target.read_text())
    assert column_lengths(found) == {len(found["windows"]["duration_s"])}
    ended_s = found["windows"]["ended_unix_s"]
    assert ended_s[0] < began_s and ended_s[-1] > over_s
    assert len(ended_s) >= num_lines - 1  # the first line is none of a window
    assert max(found["windows"]["duration_s"]) > 0.5 + STOPPED_S / 2  # a loop that stood still is a long window
    for file in (target, lines_path(target)):
        verdict = monitor("show", file).splitlines()[-1]
        assert verdict.startswith("verdict: orchestrator is the bottleneck: its loop was busy"), verdict


async def speak() -> None:
    async with Engine("sim-voice", tasks=("speech",), enable_orch_monitor=True) as engine:
        assert [message async for message in engine.generate("speech", "hello")]


def test_the_library_writes_the_file_and_a_server_without_the_monitor_writes_nothing(target: Path) -> None:
    asyncio.run(speak())
    found = json.loads(target.read_text())
    assert set(found["replicas"]) == {"stage=talker,replica=0", "stage=code2wav,replica=0"}
    assert sum(found["windows"]["request_messages"]) > 0
    target.unlink()
    assert start_server("sim-voice").stop() == 0
    assert list(target.parent.iterdir()) == []
