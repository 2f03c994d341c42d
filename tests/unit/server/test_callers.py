"""Who a client is, and that one that would get no place is told so before its body is read."""

import json
from dataclasses import replace
from hashlib import sha256

import pytest

from antiphon.errors import ConfigError
from antiphon.messages.control import AdmissionNews
from antiphon.server.app import create_app
from antiphon.server.callers import Callers
from antiphon.server.settings import ServerSettings
from tests.unit.server.conftest import RawExchange, audio, end

SPEECH = {"model": "voice", "input": "Hi.", "response_format": "pcm"}
FULL = AdmissionNews(num_inflight=2, num_queued=5, max_waiting=0, retry_after_s=6.2)
CHAT = {"model": "voice", "messages": [{"role": "user", "content": "Hi."}]}


def scope(peer: str, *forwarded: bytes, key_digest: str = "") -> dict:
    headers = [(b"x-forwarded-for", line) for line in forwarded]
    return {"client": (peer, 4711), "headers": headers, "state": {"key_digest": key_digest}}


def test_an_address_is_a_client_and_a_key_is_one_wherever_it_comes_from():
    callers = Callers()
    assert callers.name(scope("10.0.0.1")) == callers.name(scope("10.0.0.1"))
    assert callers.name(scope("10.0.0.1")) != callers.name(scope("10.0.0.2"))
    assert callers.name(scope("10.0.0.1", key_digest="ab")) == callers.name(scope("10.0.0.2", key_digest="ab"))
    assert callers.name(scope("10.0.0.1", key_digest="ab")) != callers.name(scope("10.0.0.1", key_digest="cd"))


def test_a_name_says_nothing_of_what_it_stands_for():
    name = Callers().name(scope("10.0.0.1", key_digest="ab" * 32))
    assert len(name) == 16
    assert "abab" not in name


def test_addresses_of_one_ipv6_subscriber_are_one_client():
    callers = Callers()
    assert callers.name(scope("2001:db8:1:2::5")) == callers.name(scope("2001:db8:1:2:ffff::9"))
    assert callers.name(scope("2001:db8:1:2::5")) != callers.name(scope("2001:db8:1:3::5"))


@pytest.mark.parametrize("peer", ["127.0.0.1", "10.0.0.1", "::1"])
def test_nobody_can_give_himself_another_address(peer):
    callers = Callers()
    assert callers.name(scope(peer, b"1.2.3.4")) == callers.name(scope(peer))


@pytest.mark.parametrize(
    ("lines", "address"),
    [
        ((b"1.2.3.4",), "1.2.3.4"),
        ((b"6.6.6.6, 1.2.3.4",), "1.2.3.4"),  # what stands before the last untrusted one may be invented
        ((b"6.6.6.6", b"1.2.3.4, 10.1.1.1"), "1.2.3.4"),
        ((b"nonsense",), "127.0.0.1"),
        ((b"",), "127.0.0.1"),
        ((), "127.0.0.1"),
    ],
)
def test_a_trusted_proxy_says_who_the_client_is(lines, address):
    callers = Callers("127.0.0.1, 10.0.0.0/8")
    assert callers.name(scope("127.0.0.1", *lines)) == callers.name(scope(address))
    assert callers.name(scope("9.9.9.9", *lines)) == callers.name(scope("9.9.9.9"))


def test_a_proxy_that_is_no_address_is_an_error_of_the_configuration():
    with pytest.raises(ConfigError, match=r"server\.trusted_proxies: 'proxy\.example'"):
        Callers("127.0.0.1, proxy.example")


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/chat/completions", "/v1/audio/transcriptions"])
async def test_a_request_that_would_get_no_place_is_refused_before_its_body_is_read(app, client, path):
    client.admission.hear(FULL)
    exchange = RawExchange(app, path, body_chunks=[b"x" * 10_000] * 3)
    await exchange.run()
    assert (exchange.status, exchange.num_received_bytes) == (503, 0)
    assert (b"retry-after", b"7") in exchange.sent[0]["headers"]
    assert b'"code":"overloaded"' in exchange.body_sent


@pytest.mark.anyio
async def test_what_needs_no_place_is_answered_while_there_is_none(http, client):
    client.admission.hear(FULL)
    for path in ("/v1/models", "/health", "/metrics", "/v1/audio/voices"):
        assert (await http.get(path)).status_code == 200


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/audio/speech", SPEECH),
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", {**CHAT, "stream": True}),
    ],
)
async def test_a_request_is_submitted_under_the_name_of_its_client(http, client, path, body):
    client.script = [audio(10), end("code2wav"), end("thinker")]
    await http.post(path, json=body)
    assert len(client.clients) == 1
    assert client.clients == [Callers().name(scope("127.0.0.1"))]


@pytest.mark.anyio
async def test_two_keys_from_one_address_are_two_clients(client, drain):
    keys = ("sk-one", "sk-two")
    digests = tuple(sha256(key.encode()).hexdigest() for key in keys)
    app = create_app(client, replace(ServerSettings(), api_key_digests=digests), drain)
    client.script = [audio(10), end("code2wav")]
    for key in keys:
        headers = [(b"content-type", b"application/json"), (b"authorization", f"Bearer {key}".encode())]
        await RawExchange(app, "/v1/audio/speech", json.dumps(SPEECH).encode(), headers).run()
    assert len(client.clients) == len(set(client.clients)) == 2
