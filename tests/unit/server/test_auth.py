"""API keys: what is guarded, how a key may come, and that a wrong one costs nothing and is said nowhere."""

import logging
from dataclasses import replace
from hashlib import sha256

import httpx
import pytest

from antiphon.errors import UnauthorizedError
from antiphon.server.app import create_app
from antiphon.server.auth import KeyRing
from antiphon.server.settings import ServerSettings
from tests.unit.server.conftest import RawExchange, audio, end

pytestmark = pytest.mark.anyio
KEY, OTHER_KEY = "sk-first-0123456789", "sk-second-0123456789"
DIGESTS = tuple(sha256(key.encode()).hexdigest() for key in (KEY, OTHER_KEY))
SPEECH = {"model": "voice", "input": "Hi.", "response_format": "pcm"}
OPEN = ("/health", "/ready", "/metrics", "/docs", "/openapi.json")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def app(client, drain):
    return create_app(client, replace(ServerSettings(), api_key_digests=DIGESTS), drain)


@pytest.mark.parametrize("key", [KEY, OTHER_KEY])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_each_key_opens_the_door(http, client, key, scheme):
    client.script = [audio(10), end("code2wav")]
    answer = await http.post("/v1/audio/speech", json=SPEECH, headers={"Authorization": f"{scheme} {key}"})
    assert answer.status_code == 200
    assert len(answer.content) == 20


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer(""),
        bearer("sk-third"),
        bearer(KEY[:-1]),
        bearer(f"{KEY}x"),
        bearer(DIGESTS[0]),
        {"Authorization": KEY},
    ],
)
@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/models", "/v1/nothing", "/v1"])
async def test_without_a_known_key_nothing_under_v1_answers(http, client, path, headers):
    answer = await http.post(path, json=SPEECH, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.headers["x-request-id"].startswith("req-")
    error = answer.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, "invalid_api_key")
    assert client.inputs == []


async def test_a_refused_body_is_not_read(app, client):
    exchange = RawExchange(app, "/v1/audio/speech", body_chunks=[b"x" * 10_000] * 3)
    await exchange.run()
    assert (exchange.status, exchange.num_received_bytes) == (401, 0)


@pytest.mark.parametrize("path", OPEN)
async def test_what_tells_how_the_server_is_needs_no_key(http, path):
    assert (await http.get(path)).status_code == 200


async def test_a_server_without_keys_takes_what_clients_send_as_one(client, drain):
    client.script = [audio(10), end("code2wav")]
    app = create_app(client, ServerSettings(), drain)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        for headers in ({}, bearer("anything")):
            assert (await http.post("/v1/audio/speech", json=SPEECH, headers=headers)).status_code == 200


async def test_no_key_is_in_an_answer_or_a_log(http, caplog):
    caplog.set_level(logging.DEBUG)
    for key in (KEY, "sk-wrong-key"):
        answer = await http.post("/v1/audio/speech", json={**SPEECH, "voice": 5}, headers=bearer(key))
        assert answer.status_code in (400, 401)
        assert key not in answer.text
        assert key not in str(answer.headers)
    assert "req=" in caplog.text
    assert "sk-" not in caplog.text


def handshake(*subprotocols: bytes) -> dict:
    return {"type": "websocket", "headers": [(b"sec-websocket-protocol", line) for line in subprotocols]}


@pytest.mark.parametrize(
    "lines",
    [
        [b"realtime, openai-insecure-api-key.%b, openai-beta.realtime-v1" % KEY.encode()],
        [b"realtime", b"openai-insecure-api-key.%b" % KEY.encode()],
    ],
)
def test_a_browsers_websocket_may_send_its_key_as_a_subprotocol(lines):
    assert KeyRing(DIGESTS).check(handshake(*lines)) == DIGESTS[0]


@pytest.mark.parametrize("line", [b"realtime", b"openai-insecure-api-key.", b"openai-insecure-api-key.sk-wrong", b""])
def test_a_websocket_without_a_known_key_is_refused(line):
    with pytest.raises(UnauthorizedError):
        KeyRing(DIGESTS).check(handshake(line))


def test_a_subprotocol_is_no_key_of_an_http_request():
    line = b"openai-insecure-api-key." + KEY.encode()
    with pytest.raises(UnauthorizedError):
        KeyRing(DIGESTS).check({"type": "http", "headers": [(b"sec-websocket-protocol", line)]})
