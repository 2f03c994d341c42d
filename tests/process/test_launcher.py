"""The launcher: what it starts it names, watches, restarts and ends. On sim-relay, whose processes start in no time."""

import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.process.conftest import Server, eventually, start_server
from tests.process.metrics_page import assert_is_at_rest, assert_nothing_is_held, metric, totals
from tests.process.relay_server import (
    CHILDREN,
    SLOW_TEXT,
    alive,
    answer,
    ask,
    child,
    children,
    cmdline,
    run_directory,
    run_serve,
    shared_files,
)

pytestmark = pytest.mark.usefixtures("runtime_dir")


@pytest.fixture(scope="module")
def server(runtime_dir: Path) -> Iterator[Server]:
    running = start_server("sim-relay", "--api-servers", "2")
    yield running
    assert running.stop() == 0


def test_every_process_is_named_after_what_it_is(server: Server) -> None:
    expected = sorted([*CHILDREN, "antiphon: api-server/1"])
    assert sorted(children(server.process.pid).values()) == expected
    assert cmdline(server.process.pid).strip("\0 ") == "antiphon: serve sim-relay"


def test_every_process_may_open_as_many_files_as_the_hard_limit_lets_it(server: Server) -> None:
    for pid, name in children(server.process.pid).items():
        if name == "antiphon: cleaner":  # a shell, which serves nobody
            continue
        limits = Path(f"/proc/{pid}/limits").read_text()
        soft, hard = re.findall(r"Max open files +(\d+|unlimited) +(\d+|unlimited)", limits)[0]
        assert soft == hard


def test_two_api_servers_serve_one_port(server: Server) -> None:
    assert answer(server, "hello") == "hello"
    pids = [pid for pid, name in children(server.process.pid).items() if "api-server" in name]
    sources = set()

    def both_have_served() -> bool:
        assert answer(server, "again") == "again"
        sources.update(metric(server, "http_requests_open"))
        return sources == {'{process="api-server/0"}', '{process="api-server/1"}'}

    assert len(pids) == 2
    assert eventually(both_have_served), sources


def test_a_fault_in_a_stage_is_one_http_error_and_the_next_request_is_served(server: Server) -> None:
    for command, part in {"raise-in-first": "encoder was told", "raise-in-second": "decoder was told"}.items():
        response = ask(server, f"{command}:hello world")
        assert response.status_code == 500
        assert part in response.json()["error"]["message"]
    response = ask(server, "undeclared:hello world")
    assert (response.status_code, response.json()["error"]["code"]) == (500, "undeclared_output")
    assert answer(server, "empty:hello") == ""
    assert answer(server, "still here: ünïcödé") == "still here: ünïcödé"


@pytest.mark.parametrize("stage", ["encoder", "decoder"])
def test_a_killed_replica_is_started_again_and_with_it_its_request(server: Server, stage: str) -> None:
    assert_is_at_rest(server)
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(answer(server, SLOW_TEXT)))
    asking.start()
    labels = f'{{replica="{stage}/0",stage="{stage}"}}'
    assert eventually(lambda: metric(server, "requests_bound").get(labels) == 1.0)
    (victim,) = (pid for pid, name in children(server.process.pid).items() if name == f"antiphon: {stage}/0")
    os.kill(victim, signal.SIGKILL)
    asking.join(60)
    assert answers == [SLOW_TEXT.removeprefix("slow:")]
    assert answer(server, "served again") == "served again"
    assert victim not in children(server.process.pid)
    sockets = {path.name for path in run_directory(server).glob(f"{stage}.0.*.sock")}
    assert sockets == {f"{stage}.0.1.control.sock", f"{stage}.0.1.chunks.sock"}  # none that its first life had


def test_a_replica_that_crashes_with_rows_in_its_hands_leaves_nothing_held_at_its_producer(server: Server) -> None:
    assert_is_at_rest(server)
    assert ask(server, "exit-in-second:hello world").status_code == 502
    assert eventually(lambda: ask(server, "hello").status_code == 200, 60.0)
    assert_nothing_is_held(server)


def test_a_restart_whose_files_cannot_be_written_is_tried_again(capfd: pytest.CaptureFixture[str]) -> None:
    """As on a full disk: it may have room later."""
    server, log = start_server("sim-relay", "--set", "restarts.backoff_s=0.1"), ""

    def is_logged(line: str) -> bool:
        nonlocal log
        log += capfd.readouterr().err
        return line in log

    directory = run_directory(server)
    away = directory.with_name("away")
    directory.rename(away)
    os.kill(child(server, "decoder/0"), signal.SIGKILL)
    assert eventually(lambda: is_logged("could not start: [Errno 2] No such file or directory")), log
    away.rename(directory)
    assert eventually(lambda: is_logged("decoder/0 is ready again")), log
    assert answer(server, "hello") == "hello"
    assert server.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_with_code_0_and_leaves_nothing(runtime_dir: Path, number: signal.Signals) -> None:
    run_before = set(runtime_dir.iterdir())
    server = start_server("sim-relay")
    assert len(set(runtime_dir.iterdir()) - run_before) == 1
    assert answer(server, "hello") == "hello"
    pids = list(children(server.process.pid))
    assert len(pids) == len(CHILDREN)
    shared = shared_files([server.process.pid, *pids])
    assert server.stop(number) == 0
    assert alive(pids) == []
    assert set(runtime_dir.iterdir()) == run_before
    assert not any(file.exists() for file in shared), shared


def test_a_signal_while_a_request_runs_ends_the_server_all_the_same(runtime_dir: Path) -> None:
    run_before = set(runtime_dir.iterdir())
    server = start_server("sim-relay", "--set", "timeouts.drain_s=1")
    pids, asked = list(children(server.process.pid)), list[httpx.Response]()
    asking = threading.Thread(target=lambda: asked.append(ask(server, SLOW_TEXT * 9)), daemon=True)
    asking.start()
    assert eventually(lambda: any(metric(server, "requests_bound").values()))
    assert server.stop() == 0
    asking.join(10)
    assert [response.status_code for response in asked if response.status_code < 499] == []
    assert alive(pids) == []
    assert set(runtime_dir.iterdir()) == run_before


@pytest.mark.parametrize(
    ("setting", "parts"),
    [
        (
            "stages.encoder.model=/nowhere/weights",
            ["encoder/0 could not start: StageError", "none at /nowhere/weights"],
        ),
        (
            "stages.decoder.python=/bin/true",
            ["decoder/0 could not start", "ended before it was ready", "(exit code 0)"],
        ),
        ("stages.decoder.python=/nowhere/python", ["decoder/0 could not start", "/nowhere/python", "No such file"]),
    ],
)
def test_a_process_that_cannot_start_is_named_with_the_real_error_and_ends_the_rest(
    runtime_dir: Path, setting: str, parts: list[str]
) -> None:
    run_before = set(runtime_dir.iterdir())
    ended = run_serve("sim-relay", "--port", "0", "--set", setting)
    assert ended.returncode == 1
    errors = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, ended.stderr
    for part in parts:
        assert part in errors[0]
    assert " is served at " not in ended.stdout
    assert set(runtime_dir.iterdir()) == run_before
    assert str(runtime_dir) not in " ".join(cmdline(int(p.name)) for p in Path("/proc").iterdir() if p.name.isdigit())


BROKEN_PIPELINE = """
import dataclasses
from antiphon.models.simulated.pipeline import DECODER, PIPELINE as WHOLE
broken = dataclasses.replace(DECODER, model={model!r})
PIPELINE = dataclasses.replace(WHOLE, name="broken", stages=(WHOLE.stages[0], broken))
"""


@pytest.mark.parametrize(
    ("code", "last_line"),
    [
        (
            "import a_package_that_nobody_has",
            "stage.py cannot be imported: No module named 'a_package_that_nobody_has'",
        ),
        ("raise RuntimeError('the weights are\\nof another model')", "RuntimeError: the weights are of another model"),
    ],
)
def test_the_last_line_of_a_stages_traceback_is_the_one_error(tmp_path: Path, code: str, last_line: str) -> None:
    (tmp_path / "stage.py").write_text(f"class Broken:\n    pass\n{code}\n")
    (tmp_path / "pipeline.py").write_text(BROKEN_PIPELINE.format(model=f"{tmp_path}/stage.py:Broken"))
    ended = run_serve(f"{tmp_path}/pipeline.py:PIPELINE", "--port", "0")
    assert ended.returncode == 1
    (error,) = (line for line in ended.stderr.splitlines() if line.startswith("error: "))
    assert error.startswith("error: decoder/0 could not start: ")
    assert last_line in error


def test_a_start_that_takes_too_long_names_who_is_late_and_the_setting() -> None:
    ended = run_serve("sim-relay", "--port", "0", "--set", "timeouts.startup_s=0.01")
    assert ended.returncode == 1
    (error,) = (line for line in ended.stderr.splitlines() if line.startswith("error: "))
    assert "encoder/0" in error and "decoder/0" in error and "timeouts.startup_s" in error


def test_a_port_in_use_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run_serve("sim-relay", "--port", str(port))
    assert ended.returncode == 1
    assert ended.stderr == (
        f"error: cannot listen on 127.0.0.1:{port}: Address already in use; choose another with --port\n"
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("sim-rellay",), "error: there is no pipeline 'sim-rellay'; did you mean 'sim-relay'?"),
        (
            ("sim-relay", "--set", "stages.encoder.replcas=2"),
            "error: --set: unknown key 'stages.encoder.replcas'; at stages.encoder there is 'replicas'",
        ),
        (("sim-relay", "--port", "99999"), "error: command line: server.port=99999: Expected `int` <= 65535"),
        (
            ("sim-relay", "--set", "stages.encoder.device=gpu"),
            "error: --set: stages.encoder.device='gpu': expected cpu, cuda, npu or xpu, and which one if",
        ),
        (("sim-relay", "--drain-timeout", "-1"), "error: command line: timeouts.drain_s=-1.0: Expected `float` >= 0"),
        (("sim-relay", "--host", "nowhere.invalid"), "error: cannot listen on nowhere.invalid:8000: "),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_that_says_what_to_do(arguments: tuple[str, ...], line: str) -> None:
    ended = run_serve(*arguments)
    assert ended.returncode == 1
    assert ended.stderr.startswith(line), ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_request_that_is_open_at_sigterm_comes_to_its_end_before_the_stages_stop() -> None:
    server = start_server("voice", "--set", "stages.listener.threads=1")
    text = " ".join(["The old man walked slowly along the beach."] * 60)
    body = {"model": "voice", "input": text, "response_format": "pcm", "seed": 1}
    with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=body, timeout=60) as response:
        pieces = response.iter_bytes()
        first = next(pieces)
        server.process.send_signal(signal.SIGTERM)
        whole = first + b"".join(pieces)
    assert server.process.wait(30) == 0
    assert len(whole) / 48_000 > 60  # seconds of audio; cut off it would be one or two


def test_a_request_that_kills_its_replica_twice_fails_alone(runtime_dir: Path) -> None:
    server = start_server("sim-relay", "--set", "restarts.backoff_s=0.1")
    texts = [f"slow:one of the answers, number {number}" for number in range(5)]
    with ThreadPoolExecutor(len(texts) + 1) as threads:
        answers = [threads.submit(answer, server, text) for text in texts]
        assert eventually(lambda: totals(server)["requests_open"] == len(texts))  # they are bound before what comes now
        deadly = threads.submit(ask, server, "exit-in-second:hello world")
        assert [each.result(60) for each in answers] == [text.removeprefix("slow:") for text in texts]
    response = deadly.result()
    assert (response.status_code, response.json()["error"]["code"]) == (502, "deadly_request"), response.text
    assert "decoder/0 died (exit code 3) while it served" in response.json()["error"]["message"]
    assert_nothing_is_held(server)
    assert server.stop() == 0
