"""Events over WebSockets under the real uvicorn, with a real client: checked, in order, bounded, ended with a word."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
import uvicorn
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from starlette.middleware import Middleware
from starlette.websockets import WebSocket
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from antiphon.config.deploy import ServerDeploy
from antiphon.errors import InvalidRequestError, OverloadedError, StageError
from antiphon.server.drain import Drain, DrainGate
from antiphon.server.edge import RequestEdge
from antiphon.server.metrics import HttpMetrics
from antiphon.server.websocket import ClientEvent, event_socket
from tests.unit.server.conftest import KERNEL_BYTES, eventually, listening

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The event loop of a real api-server: its transports differ from asyncio's."""
    return "asyncio", {"use_uvloop": True}


class Say(ClientEvent):
    words: str


class Flood(ClientEvent):
    count: int


class Fail(ClientEvent):
    how: str


KINDS = {"say": Say, "flood": Flood, "fail": Fail}
FAILURES = {
    "stage": StageError("talker/0 has failed"),
    "full": OverloadedError("too many"),
    "input": InvalidRequestError("no", param="how"),
    "bug": RuntimeError("the server's inside"),
}


@dataclass
class Echo:
    """The smallest server of events, with every layer that a real one has, and what it has seen."""

    settings: ServerDeploy
    drain: Drain = field(default_factory=Drain)
    heard: list[ClientEvent] = field(default_factory=list)
    num_flooded: int = 0
    num_ended: int = 0

    def __post_init__(self) -> None:
        self.metrics = HttpMetrics("api-server/0", lambda: (), self.drain.num_open, lambda: 0)
        layers = [
            Middleware(RequestEdge, metrics=self.metrics, drain=self.drain),
            Middleware(DrainGate, drain=self.drain),
        ]
        self.app = FastAPI(middleware=layers)
        self.app.websocket("/echo")(self.serve)

    async def serve(self, websocket: WebSocket) -> None:
        if websocket.query_params.get("refuse"):
            raise InvalidRequestError("not with this", param="refuse")
        try:
            async with event_socket(websocket, KINDS, self.settings) as socket:
                async for event in socket:
                    self.heard.append(event)
                    match event:
                        case Say(words="bad"):
                            socket.tell(InvalidRequestError("a bad word", param="words"), event)
                        case Say(words=words):
                            socket.send({"type": "said", "words": words})
                        case Flood(count=count):
                            await self.flood(socket, count)
                        case Fail(how=how):
                            socket.send({"type": "said", "words": "before"})
                            raise FAILURES[how]
        finally:
            self.num_ended += 1

    async def flood(self, socket, count: int) -> None:
        for number in range(count):
            await socket.room()
            socket.send({"type": "said", "number": number, "words": "x" * 1000})
            self.num_flooded += 1

    def counts(self) -> dict[tuple[str, str, str], float]:
        """(route, method, status) -> requests."""
        families = text_string_to_metric_families(self.metrics.page().decode())
        samples = [s for family in families for s in family.samples if s.name == "antiphon_http_requests_total"]
        return {(s.labels["route"], s.labels["method"], s.labels["status"]): s.value for s in samples}


@asynccontextmanager
async def echoing(**limits: float) -> AsyncIterator[tuple[Echo, str]]:
    """A served Echo and its ws:// address."""
    echo = Echo(ServerDeploy(**limits))
    async with listening(echo.app, echo.settings) as server:
        yield echo, f"ws://127.0.0.1:{port_of(server)}/echo"


def port_of(server: uvicorn.Server) -> int:
    return server.servers[0].sockets[0].getsockname()[1]


async def say(client: ClientConnection, **event: object) -> None:
    await client.send(json.dumps(event))


async def hear(client: ClientConnection) -> dict:
    async with asyncio.timeout(20):
        return json.loads(await client.recv())


async def closed(client: ClientConnection) -> int:
    """The code with which the server closes, after all it has said."""
    async with asyncio.timeout(20):
        with suppress(ConnectionClosed):
            while True:
                await client.recv()
        await client.wait_closed()
    return client.close_code


async def test_events_go_back_and_forth_and_the_handshake_has_an_id():
    async with echoing() as (echo, url):
        async with connect(url, additional_headers={"x-request-id": "mine-1"}) as client:
            for words in ("one", "two", "drei"):
                await say(client, type="say", words=words, event_id="e1", unknown=1)
            assert [(await hear(client))["words"] for _ in range(3)] == ["one", "two", "drei"]
            assert client.response.headers["x-request-id"] == "mine-1"
            assert "permessage-deflate" not in client.response.headers.get("Sec-WebSocket-Extensions", "")
        assert await eventually(lambda: echo.num_ended == 1)
        assert await eventually(lambda: echo.counts() == {("/echo", "WEBSOCKET", "101"): 1})
        assert echo.drain.num_open() == 0


@pytest.mark.parametrize(
    ("message", "param", "part"),
    [
        ("{", None, "one JSON object"),
        ("[]", None, "one JSON object"),
        ('{"type": "say", "words": ' + '{"a": ' * 5_000 + "1" + "}" * 5_001, None, "too deeply"),
        ('"say"', None, "one JSON object"),
        (b"\x00\x01", None, "binary"),
        ("{}", "type", "`type` is missing"),
        ('{"type": 7}', "type", "`type` is missing"),
        ('{"type": "shout"}', "type", "'shout'; it is one of say, flood, fail"),
        ('{"type": "say"}', "words", "`words` is required"),
        ('{"type": "say", "words": 7}', "words", "`words` is 7; it must be a text"),
        ('{"type": "say", "words": "bad"}', "words", "a bad word"),
    ],
)
async def test_what_is_no_event_is_told_and_the_next_one_is_taken(message, param, part):
    async with echoing() as (_, url), connect(url) as client:
        await client.send(message)
        event = await hear(client)
        assert event["type"] == "error"
        assert event["event_id"].startswith("event_")
        assert event["error"]["type"] == "invalid_request_error"
        assert event["error"]["param"] == param
        assert event["error"]["event_id"] is None
        assert part in event["error"]["message"]
        await say(client, type="say", words="still here")
        assert (await hear(client))["words"] == "still here"


@pytest.mark.parametrize("event", [{"type": "shout"}, {"type": "say"}, {"type": "say", "words": "bad"}])
async def test_an_error_names_the_event_that_it_is_about(event):
    async with echoing() as (_, url), connect(url) as client:
        await say(client, **event, event_id="mine")
        assert (await hear(client))["error"]["event_id"] == "mine"


@pytest.mark.parametrize(
    ("how", "kind", "code", "status"),
    [
        ("stage", "server_error", 1011, 500),
        ("full", "overloaded_error", 1013, 503),
        ("input", "invalid_request_error", 1008, 400),
        ("bug", "server_error", 1011, 500),
    ],
)
async def test_a_failure_is_the_last_event_behind_what_came_before_and_a_closing_code(how, kind, code, status):
    async with echoing() as (echo, url), connect(url) as client:
        await say(client, type="fail", how=how)
        assert (await hear(client))["words"] == "before"
        event = await hear(client)
        assert (event["type"], event["error"]["type"]) == ("error", kind)
        assert "inside" not in event["error"]["message"]
        assert await closed(client) == code
        assert await eventually(lambda: echo.counts() == {("/echo", "WEBSOCKET", str(status)): 1})


async def test_a_refusal_before_the_acceptance_is_an_http_answer():
    async with echoing() as (echo, url):
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"{url}?refuse=1")
        response = refused.value.response
        assert (response.status_code, response.headers["Content-Type"]) == (400, "application/json")
        assert response.headers["x-request-id"].startswith("req-")
        assert json.loads(response.body)["error"]["param"] == "refuse"
        with pytest.raises(InvalidStatus) as unknown:
            await connect(url.replace("echo", "nothing"))
        assert unknown.value.response.status_code == 404
        assert json.loads(unknown.value.response.body)["error"]["code"] == "not_found"
        assert echo.counts() == {("/echo", "WEBSOCKET", "400"): 1, ("unmatched", "WEBSOCKET", "404"): 1}


HANDSHAKE = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["GET /echo HTTP/1.1", *HANDSHAKE, "Sec-WebSocket-Version: 7"], 400),
        (["GET /echo HTTP/1.1", *HANDSHAKE[:2], "Sec-WebSocket-Version: 13"], 400),
        (["POST /echo HTTP/1.1", *HANDSHAKE, "Sec-WebSocket-Version: 13"], 405),
        (["POST /echo HTTP/1.1", *HANDSHAKE, "Sec-WebSocket-Version: 13", "Content-Length: 5"], 400),
    ],
)
async def test_a_handshake_that_cannot_be_accepted_gets_an_envelope_and_leaves_no_connection(lines, status):
    async with echoing() as (_, url):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/")[0]))
        writer.write("\r\n".join([*lines, "Host: localhost", "", ""]).encode())
        async with asyncio.timeout(20):
            answer = await reader.read()
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"x-request-id: req-" in head
        assert json.loads(body)["error"]["code"] == "invalid_handshake"
        writer.close()


async def test_a_draining_server_refuses_new_ones_and_ends_open_ones_with_a_word(monkeypatch):
    monkeypatch.setattr("antiphon.server.drain._LAST_WORDS_S", 0.2)
    async with echoing() as (echo, url), connect(url) as client:
        await say(client, type="say", words="before")
        assert (await hear(client))["words"] == "before"
        assert echo.drain.num_open() == 1
        draining = asyncio.create_task(echo.drain.finish(1.5, lambda error: None))
        await echo.drain.begun.wait()
        with pytest.raises(InvalidStatus) as refused:
            await connect(url)
        assert refused.value.response.status_code == 503
        assert int(refused.value.response.headers["Retry-After"]) >= 1
        assert json.loads(refused.value.response.body)["error"]["code"] == "shutting_down"
        await say(client, type="say", words="still open")
        assert (await hear(client))["words"] == "still open"
        event = await hear(client)
        assert (event["type"], event["error"]["code"]) == ("error", "shutting_down")
        assert await closed(client) == 1012
        await draining
        assert echo.drain.num_open() == 0


async def test_a_client_that_vanishes_leaves_nothing_behind():
    async with echoing() as (echo, url):
        client = await connect(url)
        await say(client, type="say", words="hello")
        await hear(client)
        client.transport.abort()
        assert await eventually(lambda: echo.num_ended == 1)
        assert echo.drain.num_open() == 0


async def test_a_client_that_takes_nothing_makes_nothing_pile_up_and_is_cut_off(caplog):
    async with echoing(client_read_deadline_s=0.5) as (echo, url):
        client = await slow_reader(url)
        await say(client, type="flood", count=100_000)
        client.transport.pause_reading()
        assert await eventually(lambda: echo.num_ended == 1)
        assert echo.num_flooded < 1_000  # 1 kB each: the socket's own buffers, one message, and what `room` allows
        client.transport.abort()
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING and r.name.startswith("antiphon")]
    for part in ("req=req-", "has taken no byte for 0.5 s", "server.client_read_deadline_s"):
        assert part in line


async def test_a_client_that_reads_slowly_but_reads_gets_everything():
    async with echoing(client_read_deadline_s=1.0) as (_, url):
        client = await slow_reader(url)
        await say(client, type="flood", count=1_000)
        for number in range(1_000):
            assert (await hear(client))["number"] == number
            if number % 100 == 0:
                await asyncio.sleep(0.2)
        await client.close()


async def test_a_client_that_sends_nonsense_and_reads_nothing_is_cut_off(caplog):
    async with echoing(client_read_deadline_s=0.5) as (echo, url):
        client = await slow_reader(url)
        client.transport.pause_reading()
        with suppress(ConnectionClosed, TimeoutError):
            async with asyncio.timeout(20):
                while echo.num_ended == 0:
                    await client.send(json.dumps({"nonsense": "x" * 500}))
                    await asyncio.sleep(0)
        assert await eventually(lambda: echo.num_ended == 1)
        assert await eventually(lambda: any("has taken no byte" in r.getMessage() for r in caplog.records))
        client.transport.abort()


async def slow_reader(url: str) -> ClientConnection:
    """A client for which the kernel keeps little, so that what is not read waits in the server."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", int(url.split(":")[2].split("/")[0])))
    return await connect(url, sock=sock, max_queue=1, ping_interval=None)


async def test_a_client_that_floods_pings_and_reads_nothing_is_cut_off():
    async with echoing(client_read_deadline_s=60.0) as (echo, url):
        client = await slow_reader(url)
        client.transport.pause_reading()
        frame = b"\x89\xfd" + bytes(4) + bytes(125)
        with suppress(ConnectionError):
            async with asyncio.timeout(20):
                while echo.num_ended == 0 and not client.transport.is_closing():
                    client.transport.write(frame * 100)
                    await asyncio.sleep(0)
        assert await eventually(lambda: echo.num_ended == 1)


async def test_a_message_over_the_limit_ends_its_connection_and_costs_no_memory():
    async with echoing(max_body_mib=1) as (echo, url), connect(url) as client:
        await say(client, type="say", words="x" * 900_000)
        assert len((await hear(client))["words"]) == 900_000
        await say(client, type="say", words="x" * (1 << 20))
        assert await closed(client) == 1009
        assert await eventually(lambda: echo.num_ended == 1)
        assert len(echo.heard) == 1


@pytest.mark.parametrize(
    "frames",
    [b"\x81\x80" + bytes(4) + (b"\x00\x80" + bytes(4)) * 5_000, (b"\x81\x80" + bytes(4)) * 5_000],
    ids=["pieces of one message", "messages"],
)
async def test_many_tiny_frames_end_their_connection(frames):
    async with echoing() as (echo, url), connect(url) as client:
        if frames.startswith(b"\x81\x80" + bytes(4) + b"\x00"):
            frames = b"\x01" + frames[1:]
        client.transport.write(frames)
        assert await closed(client) == 1008
        assert await eventually(lambda: echo.num_ended == 1)


async def test_a_websocket_over_which_nothing_is_said_is_closed():
    async with echoing(websocket_idle_s=1.0) as (_, url), connect(url) as client:
        for _ in range(3):
            await say(client, type="say", words="busy")
            await hear(client)
            await asyncio.sleep(0.4)
        event = await hear(client)
        assert event["error"]["code"] == "session_idle"
        assert "server.websocket_idle_s" in event["error"]["message"]
        assert await closed(client) == 1008


async def test_a_websocket_has_a_longest_time():
    async with echoing(websocket_max_s=0.3) as (_, url), connect(url) as client:

        async def talk() -> None:
            with suppress(ConnectionClosed):
                while True:
                    await say(client, type="say", words="busy")
                    await asyncio.sleep(0.02)

        talking = asyncio.create_task(talk())
        while (event := await hear(client))["type"] != "error":
            pass
        assert event["error"]["code"] == "session_expired"
        assert await closed(client) == 1008
        await talking


async def test_a_client_that_answers_no_ping_is_closed(monkeypatch):
    monkeypatch.setattr("antiphon.server.connection.PING_S", 0.1)
    async with echoing(client_read_deadline_s=0.3) as (echo, url):
        client = await connect(url, ping_interval=None)
        client.transport.pause_reading()
        assert await eventually(lambda: echo.num_ended == 1)
        client.transport.abort()
