"""The edge of a real server: who may ask, and that nobody learns a key."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from antiphon import env
from antiphon.bench.serve.generator import Generator
from antiphon.bench.serve.messages import Ask, Plan, Task
from antiphon.bench.serve.probe import ServerAddress
from tests.process.conftest import Server, start_server
from tests.process.relay_server import children, run_directory

KEYS = {"option": "sk-option-31415", "file": "sk-file-27182", "environment": "sk-environment-16180"}


@pytest.fixture(scope="module")
def server(runtime_dir: Path) -> Iterator[Server]:
    file = runtime_dir / "keys"
    file.write_text(f"# the web page\n{KEYS['file']}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(env.API_KEY, KEYS["environment"])
        running = start_server("sim-relay", "--api-key", KEYS["option"], "--api-key-file", str(file))
    yield running
    assert running.stop() == 0
    file.unlink()


@pytest.mark.parametrize("source", KEYS)
def test_a_key_of_each_source_is_asked_for_and_taken(server: Server, source: str) -> None:
    body = {"model": "sim-relay", "messages": [{"role": "user", "content": "hello"}]}
    url, headers = f"{server.url}/v1/chat/completions", {"Authorization": f"Bearer {KEYS[source]}"}
    assert httpx.post(url, json=body, headers=headers, timeout=60).status_code == 200
    refused = httpx.post(url, json=body, headers={"Authorization": f"Bearer {KEYS[source]}x"}, timeout=60)
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")


def test_no_process_shows_a_key(server: Server) -> None:
    pids = children(server.process.pid)
    assert len(pids) == 5
    for pid in pids:
        shown = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        assert b"sk-" not in shown
    assert b"sk-" not in Path(f"/proc/{server.process.pid}/cmdline").read_bytes()


def test_no_file_of_the_server_holds_a_key_and_only_an_api_server_hears_its_digest(server: Server) -> None:
    files = {path.name: path.read_text() for path in run_directory(server).iterdir() if path.suffix == ".json"}
    assert len(files) == 4
    assert not [name for name, text in files.items() if "sk-" in text]
    told = {name for name, text in files.items() if re.search(r"\b[0-9a-f]{64}\b", text)}
    assert len(told) == 1 and "api-server" in told.pop()


def test_a_benchmark_sends_the_key_of_its_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.API_KEY, KEYS["file"])
    address = ServerAddress("127.0.0.1", server.port)
    body = {"model": address.model(), "messages": [{"role": "user", "content": "hello"}], "stream": True}
    plan = Plan(address.host, address.port, Task.CHAT, 24_000, (Ask(0, json.dumps(body)),), (), 0, deadline_s=60)
    assert asyncio.run(Generator(plan).warm_up()).errors == ()
    monkeypatch.setenv(env.API_KEY, "sk-wrong")
    (error,) = asyncio.run(Generator(plan).warm_up()).errors
    assert "401" in error
