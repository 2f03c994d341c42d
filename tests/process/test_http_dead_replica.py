"""What clients see of a replica that dies under their request: who has seen bytes is told at once, nobody waits."""

import base64
import json
import os
import re
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from antiphon.models.simulated.voice_values import spoken
from tests.process.conftest import Server, eventually
from tests.process.metrics_page import assert_nothing_is_held

TEXT = "The same again, and again, and once more. " * 450
SPEECH = {"model": "sim-voice", "input": TEXT, "response_format": "pcm"}
CHAT = {
    "model": "sim-voice",
    "messages": [{"role": "user", "content": TEXT}],
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy", "format": "pcm16"},
}
PATIENCE_S = 15.0
"""The promise is 1 s; a loaded test machine gets more, but less than half of any deadline that would end a request."""


@dataclass
class Heard:
    """What one client has received, when the first of it came, and how and when it ended."""

    data: bytes = b""
    status: int = 0
    is_broken: bool = False
    ended_s: float = 0.0
    started: threading.Event = field(default_factory=threading.Event)


def listen(server: Server, path: str, body: dict, heard: Heard) -> None:
    try:
        with httpx.stream("POST", f"{server.url}{path}", json=body, timeout=60) as response:
            heard.status = response.status_code
            for data in response.iter_raw():
                heard.data += data
                if len(heard.data) > 2_000:
                    heard.started.set()
    except httpx.RemoteProtocolError:
        heard.is_broken = True
    heard.ended_s = time.monotonic()


def pid_of(server: Server, title: str) -> int:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == server.process.pid and title in (folder / "cmdline").read_text():
                    return int(folder.name)
            except (FileNotFoundError, ProcessLookupError):
                continue
    raise AssertionError(f"there is no {title}")


def events(data: bytes) -> list[dict]:
    return [json.loads(line) for line in re.findall(r"^data: (.*)$", data.decode(), re.MULTILINE)]


def assert_error_event(heard: Heard) -> list[dict]:
    """The last event is the error; gives those before it."""
    assert b"event: error\n" in heard.data
    *before, last = events(heard.data)
    assert (last["type"], last["error"]["code"]) == ("error", "replica_died")
    assert "talker/0" in last["error"]["message"]
    assert (heard.status, heard.is_broken) == (200, False)
    return before


def assert_is_beginning(pcm: bytes) -> None:
    assert 1_000 < len(pcm) < len(spoken(TEXT))
    assert spoken(TEXT).startswith(pcm)


def test_a_killed_talker_is_told_to_every_client_that_has_begun_to_hear_it(sim_voice_server: Server) -> None:
    asked: dict[str, tuple[str, dict]] = {
        "events": ("/v1/audio/speech", {**SPEECH, "stream_format": "sse"}),
        "bytes": ("/v1/audio/speech", SPEECH),
        "chat": ("/v1/chat/completions", {**CHAT, "stream": True}),
        "whole": ("/v1/chat/completions", CHAT),
    }
    heard = {name: Heard() for name in asked}
    threads = [threading.Thread(target=listen, args=(sim_voice_server, *asked[name], heard[name])) for name in asked]
    for thread in threads:
        thread.start()
    for name in ("events", "bytes", "chat"):
        assert heard[name].started.wait(30), name
    killed_s = time.monotonic()
    os.kill(pid_of(sim_voice_server, "talker/0"), signal.SIGKILL)
    for thread in threads:
        thread.join(60)
    for name in ("events", "bytes", "chat"):
        assert heard[name].ended_s - killed_s < PATIENCE_S, name
    _check_what_was_heard(heard)
    speech = {**SPEECH, "input": "hello"}
    assert eventually(
        lambda: httpx.post(f"{sim_voice_server.url}/v1/audio/speech", json=speech).content == spoken("hello")
    )
    assert_nothing_is_held(sim_voice_server)


def _check_what_was_heard(heard: dict[str, Heard]) -> None:
    deltas = assert_error_event(heard["events"])
    assert_is_beginning(b"".join(base64.b64decode(delta["audio"]) for delta in deltas))
    assert heard["bytes"].is_broken, "a client must see that the rest of a file is missing"
    assert_is_beginning(heard["bytes"].data)
    deltas = [event["choices"][0]["delta"] for event in assert_error_event(heard["chat"])]
    assert TEXT.startswith("".join(delta.get("content", "") for delta in deltas))
    assert_is_beginning(b"".join(base64.b64decode(delta.get("audio", {}).get("data", "")) for delta in deltas))
    whole = heard["whole"]
    assert whole.status == 200, "its client had seen nothing, so it is started again"
    assert json.loads(whole.data)["choices"][0]["message"]["content"] == TEXT


def test_a_fault_before_any_output_is_one_http_error(sim_voice_server: Server) -> None:
    body = {**SPEECH, "input": "raise-in-talker:hello world"}
    answer = httpx.post(f"{sim_voice_server.url}/v1/audio/speech", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "stage_error")
