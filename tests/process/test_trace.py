"""`serve --trace FILE`: the way of every request through all processes, also of those that were killed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import httpx

from antiphon import Engine
from tests.process.conftest import Server, eventually, start_server
from tests.process.metrics_page import totals
from tests.process.relay_server import children

STAGES = ("thinker/0", "talker/0", "code2wav/0")


def spans_of(path: Path) -> dict[str, dict[str, set[str]]]:
    """Request -> process -> names of its spans."""
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    found: dict[str, dict[str, set[str]]] = {}
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            request = found.setdefault(event["args"]["request"], {})
            request.setdefault(names[event["pid"]], set()).add(event["name"])
    return found


def assert_is_well_formed(path: Path) -> None:
    """As the format asks: a lane's spans follow one another or nest, and each arrow starts and ends in a span."""
    events = json.loads(path.read_text())["traceEvents"]
    lanes, arrows = defaultdict[tuple[int, int], list[tuple[int, int]]](list), defaultdict[int, list[dict]](list)
    for event in events:
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] in ("s", "f"):
            arrows[event["id"]].append(event)
    assert {event["ph"] for event in events} == {"M", "X", "s", "f"}
    for spans in lanes.values():
        open_ends: list[int] = []
        for start, stop in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or stop <= open_ends[-1]
            open_ends.append(stop)
    for start, stop in arrows.values():
        assert (start["ph"], stop["ph"], stop["bp"]) == ("s", "f", "e") and start["ts"] <= stop["ts"]
        for end in (start, stop):
            assert any(begins <= end["ts"] <= ends for begins, ends in lanes[end["pid"], end["tid"]])


def speak(server: Server) -> str:
    """The id of a spoken chat that has come to its end."""
    body = {
        "model": "sim-voice",
        "messages": [{"role": "user", "content": "Where does the time go?"}],
        "modalities": ["text", "audio"],
        "audio": {"voice": "none", "format": "pcm16"},
        "stream": True,
    }
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.text.endswith("data: [DONE]\n\n")
    return answer.headers["x-request-id"]


def test_the_trace_has_the_way_of_every_request_also_through_a_replica_that_was_killed(tmp_path):
    path = tmp_path / "trace.json"
    server = start_server("sim-voice", "--trace", str(path), "--set", "restarts.backoff_s=0")
    requests = [speak(server)]
    (pid,) = [pid for pid, name in children(server.process.pid).items() if name == "antiphon: talker/0"]
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: totals(server).get("replica_restarts_total") == 1, 60.0)
    requests.append(speak(server))
    assert server.stop() == 0
    assert_is_well_formed(path)
    found = spans_of(path)
    assert set(requests) == set(found)
    for request in requests:
        assert found[request]["api-server/0"] == {"request", "admission", "encode"}
        for stage in STAGES:
            assert {"wait for input", "queue", "generate", "hand-off"} <= found[request][stage], (request, stage)


def test_a_file_that_cannot_be_written_is_an_error_before_anything_starts(tmp_path):
    command = [
        sys.executable,
        "-m",
        "antiphon",
        "serve",
        "sim-voice",
        "--trace",
        str(tmp_path / "no" / "x"),
        "--port",
        "0",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "error: cannot write the trace to" in ended.stderr
    assert "No such file or directory; choose another --trace" in ended.stderr


def test_the_library_writes_the_same_trace_with_itself_as_a_row(tmp_path):
    path = tmp_path / "trace.json"

    async def run() -> None:
        async with Engine("sim-voice", tasks=("speech",), trace=str(path)) as engine:
            async for _ in engine.generate("speech", "Hello there."):
                pass

    asyncio.run(run())
    ((_, processes),) = spans_of(path).items()
    assert processes["engine"] == {"request", "admission"}
    assert {"queue", "generate"} <= processes["talker/0"] & processes["code2wav/0"]
