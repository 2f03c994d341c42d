"""Clients that do not read and clients that do not send, on real sockets under uvicorn: their time is bounded."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvicorn

from antiphon.config.deploy import ServerDeploy
from antiphon.server.app import create_app
from antiphon.server.drain import Drain
from antiphon.server.settings import ServerSettings
from tests.unit.server.conftest import KERNEL_BYTES, ScriptedClient, audio, end, eventually, listening, text

pytestmark = pytest.mark.anyio
DEADLINE_S = 0.4
NUM_SAMPLES = 500_000  # 1 MB: more than the kernel takes for a client that does not read
SPEECH = {"model": "voice", "input": "Hi.", "response_format": "pcm"}
CHAT = {"model": "voice", "messages": [{"role": "user", "content": "Hi."}]}
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}}


@asynccontextmanager
async def served(client: ScriptedClient, **limits: float) -> AsyncIterator[uvicorn.Server]:
    """The app over `client` on a port of its own."""
    settings = ServerDeploy(**limits)
    async with listening(create_app(client, ServerSettings(settings), Drain()), settings) as server:
        yield server


async def open_socket(server: uvicorn.Server, receive_bytes: int = 0) -> socket.socket:
    """A connected socket that nobody reads; receive_bytes: how little the kernel shall take for it."""
    client = socket.socket()
    if receive_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.setblocking(False)
    address = server.servers[0].sockets[0].getsockname()
    await asyncio.get_running_loop().sock_connect(client, address)
    return client


def post(path: str, body: dict, *headers: str) -> bytes:
    data = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
    ]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + data


async def send(client: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(client, data)


async def read_to_end(client: socket.socket) -> bytes:
    """Everything until the connection is closed or reset."""
    received = b""
    async with asyncio.timeout(20):
        try:
            while data := await asyncio.get_running_loop().sock_recv(client, 1 << 20):
                received += data
        except ConnectionResetError:
            pass
    return received


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("antiphon") and r.levelno == logging.WARNING]


@pytest.mark.parametrize(
    ("path", "body", "has_finished"),
    [
        ("/v1/audio/speech", SPEECH, False),
        ("/v1/audio/speech", {**SPEECH, "stream_format": "sse"}, False),
        ("/v1/audio/speech", SPEECH, True),
        ("/v1/chat/completions", {**CHAT, **SPOKEN, "stream": True}, True),
        ("/v1/chat/completions", {**CHAT, **SPOKEN}, True),
    ],
    ids=["bytes", "events", "bytes, stages have finished", "events, stages have finished", "whole answer"],
)
async def test_a_client_that_takes_no_byte_is_cut_off_and_its_request_aborted(client, caplog, path, body, has_finished):
    client.script = [audio(NUM_SAMPLES), audio(NUM_SAMPLES)]
    if has_finished:
        client.script += [text("Hi."), end("thinker"), end("code2wav")][0 if "chat" in path else 2 :]
    async with served(client, client_read_deadline_s=DEADLINE_S) as server:
        stuck = await open_socket(server, receive_bytes=KERNEL_BYTES)
        await send(stuck, post(path, body, "x-request-id: mine"))
        assert await eventually(lambda: len(client.request_ids) == 1)
        assert await eventually(lambda: not server.server_state.connections)
        assert await eventually(lambda: not server.server_state.tasks)
        stuck.close()
    assert client.aborted == ([] if has_finished else client.request_ids)
    (line,) = (line for line in warnings(caplog) if "has taken no byte" in line)
    for part in (client.request_ids[0], f"for {DEADLINE_S:g} s", " bytes wait", "server.client_read_deadline_s"):
        assert part in line


async def test_a_few_bytes_that_wait_for_a_client_count_as_well(client):
    client.script = [audio(30_000), end("code2wav")]
    async with served(client, client_read_deadline_s=DEADLINE_S) as server:
        stuck = await open_socket(server, receive_bytes=KERNEL_BYTES)
        await send(stuck, post("/v1/audio/speech", SPEECH, "Connection: close"))
        began_s = asyncio.get_running_loop().time()
        assert await eventually(lambda: len(client.request_ids) == 1)
        assert await eventually(lambda: not server.server_state.connections)
        took_s = asyncio.get_running_loop().time() - began_s
        assert took_s > DEADLINE_S / 2, "the kernel has taken all: nothing is tested"
        stuck.close()


async def test_a_client_that_reads_slowly_but_reads_is_served_to_the_end(client, caplog):
    client.script = [audio(NUM_SAMPLES), end("code2wav")]
    async with served(client, client_read_deadline_s=DEADLINE_S) as server:
        slow = await open_socket(server, receive_bytes=65_536)
        await send(slow, post("/v1/audio/speech", SPEECH, "Connection: close"))
        received, began_s = 0, asyncio.get_running_loop().time()
        while data := await asyncio.get_running_loop().sock_recv(slow, 32_768):
            received += len(data)
            await asyncio.sleep(0.04)
        assert asyncio.get_running_loop().time() - began_s > 3 * DEADLINE_S
        assert received > 2 * NUM_SAMPLES
        slow.close()
    assert not warnings(caplog)


async def whole_head_no_body(server: uvicorn.Server, client: socket.socket) -> None:
    await send(client, post("/v1/audio/speech", SPEECH)[:-5])


async def one_byte_at_a_time(server: uvicorn.Server, client: socket.socket) -> None:
    head, _, body = post("/v1/audio/speech", SPEECH).partition(b"\r\n\r\n")
    await send(client, head + b"\r\n\r\n")
    for byte in body[:20]:
        await send(client, bytes([byte]))
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("sends", [whole_head_no_body, one_byte_at_a_time])
async def test_a_body_that_does_not_come_is_a_408_that_names_the_setting(
    client, monkeypatch, sends: Callable[[uvicorn.Server, socket.socket], Awaitable[None]]
):
    monkeypatch.setattr("antiphon.server.limits.BodyLimit._DROP_DEADLINE_S", 0.2)
    async with served(client, client_send_deadline_s=DEADLINE_S) as server:
        slow = await open_socket(server)
        await sends(server, slow)
        head, _, body = (await read_to_end(slow)).partition(b"\r\n\r\n")
        slow.close()
        assert await eventually(lambda: not server.server_state.connections)
    assert head.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in head
    assert b"x-request-id: req-" in head
    assert b'"code":"request_timeout"' in body
    assert b"server.client_send_deadline_s" in body
    assert client.request_ids == []


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"POST /v1/audio/sp", b"GET / HTTP/1.1\r\nHost: localhost\r\nA: "])
async def test_a_head_that_does_not_come_ends_its_connection(client, caplog, sent):
    async with served(client, client_send_deadline_s=DEADLINE_S) as server:
        silent = await open_socket(server)
        await send(silent, sent)
        assert await read_to_end(silent) == b""
        silent.close()
        assert not server.server_state.connections
    (line,) = warnings(caplog)
    assert "server.client_send_deadline_s" in line


async def test_a_client_whose_next_requests_wait_for_an_answer_is_not_slow(client, caplog):
    client.script = [audio(10)]
    async with served(client, client_send_deadline_s=DEADLINE_S) as server:
        eager = await open_socket(server)
        await send(eager, post("/v1/audio/speech", SPEECH) * 2 + b"POST /v1/au")
        await asyncio.sleep(3 * DEADLINE_S)
        assert server.server_state.connections
        eager.close()
    assert not warnings(caplog)


async def test_a_client_that_goes_on_sending_slowly_after_its_answer_is_cut_off(client):
    async with served(client, client_send_deadline_s=DEADLINE_S) as server:
        slow = await open_socket(server)
        await send(slow, b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
        dribbled, began_s = 0, asyncio.get_running_loop().time()
        try:
            while dribbled < 200:
                await send(slow, b"x")
                dribbled += 1
                await asyncio.sleep(0.02)
        except (ConnectionResetError, BrokenPipeError):
            pass
        slow.close()
        assert not server.server_state.connections
    assert asyncio.get_running_loop().time() - began_s > DEADLINE_S / 2
    assert dribbled < 200


async def test_a_body_that_takes_long_but_less_than_its_deadline_is_served(client):
    client.script = [audio(10), end("code2wav")]
    async with served(client, client_send_deadline_s=20.0) as server:
        slow = await open_socket(server)
        request = post("/v1/audio/speech", SPEECH, "Connection: close")
        for byte in request:
            await send(slow, bytes([byte]))
            await asyncio.sleep(0.001)
        assert (await read_to_end(slow)).startswith(b"HTTP/1.1 200 ")
        slow.close()


async def test_bytes_that_are_no_http_get_an_envelope_with_an_id(client):
    async with served(client) as server:
        strange = await open_socket(server)
        await send(strange, b"\x16\x03\x01 this is TLS\r\n\r\n")
        head, _, body = (await read_to_end(strange)).partition(b"\r\n\r\n")
        strange.close()
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"x-request-id: req-" in head
    assert json.loads(body)["error"]["code"] == "invalid_http"


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("start", "more"),
    [(b"GET /", b"a"), (HEALTH + b"X: ", b"a"), (HEALTH, b"X: aaaa\r\n")],
    ids=["path", "one header", "many headers"],
)
async def test_a_head_without_end_is_refused_before_it_fills_the_memory(client, start, more):
    async with served(client) as server:
        peer = await open_socket(server)
        await send(peer, HEALTH + b"\r\n")
        assert (await asyncio.get_running_loop().sock_recv(peer, 1 << 20)).startswith(b"HTTP/1.1 200")
        await send(peer, start)
        sending = asyncio.create_task(send(peer, more * 9_000_000))
        refusal = await read_to_end(peer)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):  # what is refused is not read
            await sending
    if refusal:  # the kernel may drop it with the bytes that nobody has read
        assert json.loads(refusal.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


async def test_a_body_that_is_no_http_gets_an_envelope_and_nothing_of_its_request_is_left(client):
    async with served(client) as server:
        peer = await open_socket(server)
        head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        await send(peer, head + b"Transfer-Encoding: chunked\r\n\r\n5\r\n12345\r\nno length\r\n")
        head, _, body = (await read_to_end(peer)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400")
        assert json.loads(body)["error"]["code"] == "invalid_http"
        assert await eventually(lambda: not server.server_state.tasks)
    assert client.inputs == []
