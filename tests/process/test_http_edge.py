"""The edge of a real server: who may ask, that nobody learns a key, and what happens when there is no room."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync import client as websockets_client

from antiphon import env
from antiphon.bench.serve.generator import Generator
from antiphon.bench.serve.messages import Ask, Plan, Task
from antiphon.bench.serve.probe import ServerAddress
from tests.process.conftest import Server, eventually, start_server
from tests.process.metrics_page import assert_is_at_rest, totals
from tests.process.raw_http import RawRequest
from tests.process.relay_server import children, run_directory

KEYS = {"option": "sk-option-31415", "file": "sk-file-27182", "environment": "sk-environment-16180"}


@pytest.fixture(scope="module")
def server(runtime_dir: Path) -> Iterator[Server]:
    file = runtime_dir / "keys"
    file.write_text(f"# the web page\n{KEYS['file']}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(env.API_KEY, KEYS["environment"])
        settings = ("admission.max_inflight=1", "admission.max_queue=2")
        options = ("--api-key", KEYS["option"], "--api-key-file", str(file))
        running = start_server("sim-relay", *options, *(word for setting in settings for word in ("--set", setting)))
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


PATH = "/v1/chat/completions"


def body_of(text: str) -> dict:
    return {"model": "sim-relay", "messages": [{"role": "user", "content": text}]}


def bearer(source: str) -> str:
    return f"Authorization: Bearer {KEYS[source]}"


def test_a_full_server_refuses_a_greedy_client_unread_and_lets_a_modest_one_in(server: Server) -> None:
    assert_is_at_rest(server)
    running = RawRequest(server, PATH, body_of("slow:" + "This takes its time. " * 100), bearer("option"))
    assert eventually(lambda: totals(server)["requests_inflight"] == 1)
    greedy = [RawRequest(server, PATH, body_of(text), bearer("option")) for text in ("slow:first", "slow:second")]
    assert eventually(lambda: totals(server)["requests_queued"] == 2)
    unread = RawRequest(server, PATH, bytes(1_000_000), bearer("option"), sent=0)  # it waits to be asked for its body
    unread.read_until(b"}}")
    assert unread.received.startswith(b"HTTP/1.1 503 ")
    assert re.search(rb"\r\nretry-after: [1-9]\d*\r\n", unread.received)
    assert b"1 requests run and 2 wait" in unread.received
    modest = RawRequest(server, PATH, body_of("hello"), bearer("file"))
    assert eventually(lambda: any(request.has_answer() for request in greedy)), "none has lost its place to the modest"
    running.hang_up()
    modest.read_until(b"hello")
    for request in greedy:
        request.read_until(b"}")
    assert sorted(request.received.split()[1] for request in greedy) == [b"200", b"503"]
    assert eventually(lambda: totals(server)["requests_open"] == 0)
    RawRequest(server, PATH, body_of("hello"), bearer("option")).read_until(b"hello")


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({}, 401),
        ({"additional_headers": {"Authorization": "Bearer sk-wrong"}}, 401),
        ({"subprotocols": ["realtime", "openai-insecure-api-key.sk-wrong"]}, 401),
        ({"additional_headers": {"Authorization": f"Bearer {KEYS['file']}"}}, 404),
        ({"subprotocols": ["realtime", f"openai-insecure-api-key.{KEYS['file']}"]}, 404),
    ],
)
def test_a_websocket_is_asked_for_its_key_before_anything_else(server: Server, options: dict, status: int) -> None:
    with pytest.raises(InvalidStatus) as raised:
        websockets_client.connect(f"{server.url.replace('http', 'ws')}/v1/none", **options)
    answer = raised.value.response
    assert answer.status_code == status
    assert answer.headers["x-request-id"].startswith("req-")
    assert ("www-authenticate" in answer.headers) is (status == 401)


def test_a_client_that_sends_a_large_body_anyway_gets_to_read_why_it_is_refused(server: Server) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as http:
        for _ in range(2):  # the connection goes on
            answer = http.post(PATH, content=bytes(20_000_000), headers={"Authorization": "Bearer sk-wrong"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


def test_openais_client_names_the_error_by_its_class(server: Server) -> None:
    with openai.OpenAI(api_key="sk-wrong", base_url=f"{server.url}/v1", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError) as raised:
            stranger.models.list()
        assert raised.value.code == "invalid_api_key"
    with openai.OpenAI(api_key=KEYS["environment"], base_url=f"{server.url}/v1") as friend:
        assert friend.models.list().data[0].id == "sim-relay"
