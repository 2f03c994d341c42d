"""CORS: pages of the operator's origins may ask and read, those of others may not; a preflight needs no key."""

from dataclasses import replace
from hashlib import sha256

import httpx
import pytest

from antiphon.config.deploy import ServerDeploy
from antiphon.server.app import create_app
from antiphon.server.settings import ServerSettings
from tests.unit.server.conftest import audio, end

pytestmark = pytest.mark.anyio
PAGE, OTHER = "https://voice.example", "https://elsewhere.example"
KEY = "sk-key"
SPEECH = {"model": "voice", "input": "Hi.", "response_format": "pcm"}
ASKING = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-stainless-os"}


@pytest.fixture
async def pages(client, drain):
    """A server with a key that two origins may use."""
    digest = sha256(KEY.encode()).hexdigest()
    origins = f"{PAGE}, http://localhost:3000"
    app = create_app(
        client, replace(ServerSettings(), api_key_digests=(digest,), deploy=ServerDeploy(cors_origins=origins)), drain
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        yield http


@pytest.mark.parametrize("origin", [PAGE, "http://localhost:3000"])
async def test_a_preflight_of_a_named_origin_needs_no_key_and_may_have_all_it_asks_for(pages, origin):
    answer = await pages.options("/v1/audio/speech", headers={"Origin": origin, **ASKING})
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == origin
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == ASKING["Access-Control-Request-Headers"]
    assert answer.headers["vary"] == "Origin"
    assert answer.headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize("origin", [OTHER, "null", f"{PAGE}.evil.example", "http://localhost:3001", ""])
async def test_another_origin_is_let_in_nowhere(pages, origin):
    preflight = await pages.options("/v1/audio/speech", headers={"Origin": origin, **ASKING})
    get = await pages.get("/health", headers={"Origin": origin})
    assert (preflight.status_code, get.status_code) == (401, 200)
    for answer in (preflight, get):
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["vary"] == "Origin"


async def test_a_page_may_read_answers_and_errors_with_their_id(pages, client):
    client.script = [audio(10), end("code2wav")]
    for headers, status in (({"Authorization": f"Bearer {KEY}"}, 200), ({}, 401)):
        answer = await pages.post("/v1/audio/speech", json=SPEECH, headers={"Origin": PAGE, **headers})
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "x-request-id" in answer.headers["access-control-expose-headers"]


async def test_a_key_is_asked_for_as_always(pages, client):
    answer = await pages.post("/v1/audio/speech", json=SPEECH, headers={"Origin": PAGE})
    assert answer.status_code == 401
    options = await pages.options("/v1/audio/speech", headers={"Origin": PAGE})  # that is no preflight
    assert options.status_code == 401
    assert client.inputs == []


async def test_a_star_lets_every_page_in(client, drain):
    app = create_app(client, ServerSettings(ServerDeploy(cors_origins="*")), drain)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        preflight = await http.options("/v1/audio/speech", headers={"Origin": OTHER, **ASKING})
        get = await http.get("/health")
    assert preflight.status_code == 204
    for answer in (preflight, get):
        assert answer.headers["access-control-allow-origin"] == "*"


async def test_without_origins_there_is_nothing_of_it(http):
    preflight = await http.options("/v1/audio/speech", headers={"Origin": PAGE, **ASKING})
    get = await http.get("/health", headers={"Origin": PAGE})
    assert (preflight.status_code, get.status_code) == (405, 200)
    for answer in (preflight, get):
        assert not [name for name in answer.headers if name.startswith("access-control") or name == "vary"]
