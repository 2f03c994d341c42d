"""Request ids and the counts of answered requests."""

import pytest

from tests.unit.server.conftest import audio, end

pytestmark = pytest.mark.anyio
SPEECH = {"model": "voice", "input": "Hi.", "response_format": "pcm"}


@pytest.mark.parametrize("path", ["/health", "/nothing", "/v1/models", "/v1/models/unknown"])
async def test_every_response_has_a_request_id(http, path):
    ids = {(await http.get(path)).headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


async def test_a_clients_own_id_comes_back_but_is_not_used_inside(http, client):
    client.script = [audio(10), end("code2wav")]
    for _ in range(2):
        answer = await http.post("/v1/audio/speech", json=SPEECH, headers={"x-request-id": "mine-1"})
        assert answer.headers["x-request-id"] == "mine-1"
    assert len(set(client.request_ids)) == 2
    assert all(request_id.startswith("req-") for request_id in client.request_ids)


async def test_our_own_id_is_the_one_the_stages_see(http, client):
    client.script = [audio(10), end("code2wav")]
    answer = await http.post("/v1/audio/speech", json=SPEECH)
    assert client.request_ids == [answer.headers["x-request-id"]]


@pytest.mark.parametrize("bad", ["", "a b", "x" * 129, "<script>"])
async def test_a_strange_id_is_replaced(http, bad):
    answer = await http.get("/health", headers={"x-request-id": bad})
    assert answer.headers["x-request-id"].startswith("req-")
