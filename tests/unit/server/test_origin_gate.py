"""Pages of other origins, and names that somebody else's name server gives this machine, get nothing without a key."""

import asyncio
import json
from hashlib import sha256

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from antiphon.config.deploy import ServerDeploy
from antiphon.errors import ForbiddenError
from antiphon.server.app import create_app
from antiphon.server.drain import Drain
from antiphon.server.origin_gate import HostNames
from antiphon.server.settings import ServerSettings
from tests.unit.server.conftest import RawExchange, ScriptedClient, audio, end, listening

pytestmark = pytest.mark.anyio
SPEECH_PATH = "/v1/audio/speech"
SPEECH = {"model": "voice", "input": "Hi.", "response_format": "pcm"}
KEY, OTHER = "sk-key", "https://elsewhere.example"
DIGESTS = (sha256(KEY.encode()).hexdigest(),)
SOCKETS = ("/v1/audio/speech/stream", "/v1/realtime")


async def speak(client: ScriptedClient, url: str, *, keys: tuple[str, ...] = (), **headers: str) -> httpx.Response:
    """One speech request to `url`."""
    client.script = [audio(10), end("code2wav")]
    app = create_app(client, ServerSettings(ServerDeploy(**deploy_for(url)), api_key_digests=keys), Drain())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as http:
        return await http.post(f"{url}{SPEECH_PATH}", json=SPEECH, headers=headers)


def deploy_for(url: str) -> dict[str, str]:
    """A server that is heard beyond this machine for all names but this machine's own."""
    return {} if "localhost" in url or "127.0.0.1" in url or "[::1]" in url else {"host": "0.0.0.0"}


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://localhost:8000", "http://localhost:8000"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://localhost", "http://localhost"),
        ("http://my-pc:8000", "http://my-pc:8000"),
        ("http://My-PC.lan:8000", "http://my-pc.lan:8000"),
        ("http://voice.example", "https://voice.example"),  # a proxy has taken the TLS off
        ("http://voice.example:8443", "https://voice.example:8443"),
        ("http://voice.example:443", "https://voice.example"),
    ],
)
async def test_the_servers_own_page_may_ask_by_every_name(client, url, origin):
    assert (await speak(client, url, origin=origin)).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        OTHER,
        "null",
        "http://localhost:3000",
        "http://localhost",
        "http://localhost:8000.evil.example",
        "http://evil.example/localhost:8000",
        "app://localhost:8000",
        "localhost:8000",
    ],
)
async def test_a_page_of_another_origin_gets_a_403_and_costs_nothing(client, origin):
    answer = await speak(client, "http://localhost:8000", origin=origin)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")
    assert "server.cors_origins" in answer.json()["error"]["message"]
    assert answer.headers["x-request-id"].startswith("req-")
    assert client.inputs == []


async def test_its_body_is_not_read(app, client):
    headers = [(b"host", b"localhost"), (b"origin", OTHER.encode()), (b"content-type", b"text/plain")]
    exchange = RawExchange(app, SPEECH_PATH, json.dumps(SPEECH).encode(), headers=headers)
    await exchange.run()
    assert (exchange.status, exchange.num_received_bytes) == (403, 0)


async def test_who_sends_no_origin_is_no_page(client):
    assert (await speak(client, "http://localhost:8000")).status_code == 200


async def test_a_page_that_has_a_key_may_ask_from_anywhere(client):
    answer = await speak(client, "http://localhost", keys=DIGESTS, origin=OTHER, authorization=f"Bearer {KEY}")
    assert answer.status_code == 200
    assert (await speak(client, "http://localhost", keys=DIGESTS, origin=OTHER)).status_code == 401


@pytest.mark.parametrize(("origins", "status"), [(OTHER, 200), ("*", 200), ("https://voice.example", 403)])
async def test_the_operators_origins_may_ask(client, origins, status):
    client.script = [audio(10), end("code2wav")]
    app = create_app(client, ServerSettings(ServerDeploy(cors_origins=origins)), Drain())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        answer = await http.post(SPEECH_PATH, json=SPEECH, headers={"Origin": OTHER})
        get = await http.get("/v1/models", headers={"Origin": "https://third.example"})
    assert (answer.status_code, get.status_code) == (status, 200)


@pytest.mark.parametrize("path", SOCKETS)
async def test_a_websocket_of_another_origin_does_not_open(client, path):
    deploy = ServerDeploy()
    async with listening(create_app(client, ServerSettings(deploy), Drain()), deploy) as server:
        address = f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        for foreign in (OTHER, "null", "http://127.0.0.1:1"):
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"ws://{address}{path}", origin=foreign)
            assert refused.value.response.status_code == 403
            assert json.loads(refused.value.response.body)["error"]["code"] == "origin_not_allowed"
        for own in (None, f"http://{address}"):
            async with asyncio.timeout(20), connect(f"ws://{address}{path}", origin=own) as talk:
                assert json.loads(await talk.recv())["type"] == "session.created"


@pytest.mark.parametrize("path", ["/", "/v1/models", "/metrics", "/page/overview.json"])
async def test_a_name_that_is_not_this_machines_gets_no_page(http, path):
    answer = await http.get(path, headers={"host": "rebound.evil.example:8000"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_not_allowed")
    assert "server.allowed_hosts" in answer.json()["error"]["message"]


GOOD = ("localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1:8000", "[::1]:8000", "192.168.1.5", "a.localhost", "")
BAD = ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost", "evil.example:8000")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.2"])
def test_a_server_on_loopback_answers_to_its_own_names_and_to_those_that_are_set(host):
    for called in GOOD:
        HostNames(host, "").check(called)
    for called in BAD:
        with pytest.raises(ForbiddenError):
            HostNames(host, "").check(called)
    HostNames(host, "other.example, Evil.example").check("evil.example:80")
    HostNames(host, "*").check("evil.example")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "my-pc"])
def test_a_server_for_other_machines_answers_to_any_name_until_some_are_set(host):
    for called in (*GOOD, *BAD):
        HostNames(host, "").check(called)
    names = HostNames(host, "voice.example")
    for called in (*GOOD, "voice.example:8443"):
        names.check(called)
    for called in BAD:
        with pytest.raises(ForbiddenError):
            names.check(called)
