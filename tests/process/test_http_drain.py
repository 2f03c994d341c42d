"""SIGTERM: open requests have their time, new ones are sent away, and those that are cut off are told why."""

import http.client
import json
import re
import signal
import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.process.conftest import Server, eventually, start_server
from tests.process.metrics_page import totals
from tests.process.raw_http import RawRequest

CHAT = "/v1/chat/completions"
DRAIN_S = 4.0
TEXT = "No end of it. " * 100  # over 30 s


def chat(text: str, **wishes: object) -> dict:
    return {"model": "sim-relay", "messages": [{"role": "user", "content": text}], **wishes}


@pytest.fixture
def server() -> Iterator[Server]:
    running = start_server("sim-relay", "--set", f"timeouts.drain_s={DRAIN_S}")
    yield running
    running.process.kill()
    running.process.wait(10)


def kept_alive(server: Server) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", "/ready")
    assert connection.getresponse().read()
    return connection


def assert_shutting_down(status: int, headers: dict[str, str], body: bytes) -> None:
    assert status == 503
    assert headers["connection"] == "close"
    assert int(headers["retry-after"]) >= 1
    assert headers["x-request-id"]
    error = json.loads(body)["error"]
    assert (error["code"], error["type"]) == ("shutting_down", "overloaded_error")
    assert "shutting down" in error["message"]


def test_what_a_server_says_that_is_told_to_stop(server: Server) -> None:
    streamed = RawRequest(server, CHAT, chat(f"slow:{TEXT}", stream=True))
    uploading = RawRequest(server, CHAT, chat(TEXT), sent=0.5)
    whole: list[httpx.Response] = []
    asking = threading.Thread(
        target=lambda: whole.append(httpx.post(f"{server.url}{CHAT}", json=chat(f"slow:{TEXT}"), timeout=60))
    )
    asking.start()
    streamed.read_until(b"data: ", times=6)
    assert eventually(lambda: totals(server)["http_requests_open"] == 3)
    work, probe, fresh = kept_alive(server), kept_alive(server), httpx.Client(base_url=server.url, timeout=20)

    server.process.send_signal(signal.SIGTERM)
    assert eventually(lambda: fresh.get("/ready").status_code == 503)
    work.request("POST", CHAT, json.dumps(chat("hello")), {"Content-Type": "application/json"})
    answer = work.getresponse()
    assert_shutting_down(answer.status, dict(answer.getheaders()), answer.read())
    probe.request("GET", "/health")
    assert probe.getresponse().status == 200
    assert fresh.get("/ready").json()["error"]["code"] == "shutting_down"
    assert eventually(lambda: totals(server)["http_requests_open"] == 3)  # but for the one that was refused

    streamed.read_until(b"\r\n0\r\n\r\n")
    events = re.findall(r"^data: (.*)$", streamed.received.decode(), re.MULTILINE)
    *deltas, last = [json.loads(data) for data in events]
    said = "".join(delta["choices"][0]["delta"].get("content", "") for delta in deltas)
    assert len(said) > 20
    assert TEXT.startswith(said)
    assert b"event: error\n" in streamed.received
    assert (last["type"], last["error"]["code"]) == ("error", "shutting_down")
    asking.join(60)
    assert_shutting_down(whole[0].status_code, dict(whole[0].headers), whole[0].content)
    uploading.read_until(b"shutting_down")
    head, _, body = uploading.received.partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().lower().split("\r\n")[1:])
    assert_shutting_down(int(head.split()[1]), headers, body)
    assert server.process.wait(30) == 0
