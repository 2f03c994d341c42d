"""The end of an api-server's work: who is still served, who is sent away, who is cut off."""

import asyncio
import json
import time

import pytest

from antiphon.errors import AntiphonError
from tests.unit.server.conftest import RawExchange, audio, end, events

pytestmark = pytest.mark.anyio
PATH = "/v1/audio/speech"
SPEECH = {"model": "voice", "input": "Hi.", "response_format": "pcm"}
BODY = json.dumps(SPEECH).encode()


def ends_nothing(error: AntiphonError) -> None:
    """As when no request waits for a stage."""


async def test_a_draining_server_sends_work_away_and_tells_how_it_is(http, drain, client):
    await drain.finish(3.0, ends_nothing)
    refused = await http.post(PATH, json=SPEECH)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "shutting_down"
    assert 1 <= int(refused.headers["retry-after"]) <= 3
    assert refused.headers["connection"] == "close"
    assert refused.headers["x-request-id"].startswith("req-")
    assert client.request_ids == []
    for path, status in {"/health": 200, "/metrics": 200, "/ready": 503, "/v1/models": 503}.items():
        answer = await http.get(path)
        assert (answer.status_code, answer.headers["connection"]) == (status, "close")


async def test_a_server_that_does_not_drain_keeps_its_connections(http):
    assert "connection" not in (await http.get("/health")).headers


async def test_an_open_request_that_ends_in_time_is_answered_and_waited_for_no_longer(app, client, drain):
    client.script = [audio(10)]
    exchange = RawExchange(app, PATH, BODY)
    running = asyncio.create_task(exchange.run())
    await exchange.first_body.wait()
    assert drain.num_open() == 1
    draining = asyncio.create_task(drain.finish(30.0, ends_nothing))
    await asyncio.sleep(0.05)
    assert not draining.done()
    client.streams[0].push("code2wav", end("code2wav").output)
    began_s = time.monotonic()
    await asyncio.gather(running, draining)
    assert (exchange.status, exchange.complete) == (200, True)
    assert time.monotonic() - began_s < 5


async def test_a_stream_that_is_cut_off_ends_with_an_error_event_after_what_came_before(app, client, drain):
    client.script = [audio(10)]
    exchange = RawExchange(app, PATH, json.dumps({**SPEECH, "stream_format": "sse"}).encode())
    running = asyncio.create_task(exchange.run())
    await exchange.first_body.wait()
    await drain.finish(0.0, lambda error: client.streams[0].fail(error))
    await running
    first, last = events(exchange.body_sent.decode())
    assert first["type"] == "speech.audio.delta"
    assert (last["type"], last["error"]["code"]) == ("error", "shutting_down")
    assert exchange.complete


async def test_what_waits_for_no_stage_when_the_time_is_over_gets_a_503(app, client, drain, monkeypatch):
    monkeypatch.setattr("antiphon.server.drain._LAST_WORDS_S", 0.05)

    async def never(*args: object, **kwargs: object) -> None:
        client.submitted.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(client, "submit", never)
    exchange = RawExchange(app, PATH, BODY)
    running = asyncio.create_task(exchange.run())
    await client.submitted.wait()
    await drain.finish(0.05, ends_nothing)
    assert drain.num_open() == 0
    await running
    assert exchange.status == 503
    assert b"could not finish the request in timeouts.drain_s" in exchange.body_sent


async def test_a_cancellation_that_is_not_the_drains_is_passed_on(app, client):
    client.script = [audio(10)]
    exchange = RawExchange(app, PATH, BODY)
    running = asyncio.create_task(exchange.run())
    await exchange.first_body.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert client.aborted == client.request_ids
