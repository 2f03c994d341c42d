"""The number of open WebSockets is bounded; what is refused is told when to come back, and counted by its route."""

import asyncio
import json
from contextlib import AsyncExitStack

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.http11 import Response

from antiphon.config.deploy import ServerDeploy
from antiphon.server.app import create_app
from antiphon.server.drain import Drain
from antiphon.server.settings import ServerSettings
from tests.unit.server.conftest import listening

pytestmark = pytest.mark.anyio
STREAM, REALTIME = "/v1/audio/speech/stream", "/v1/realtime"


async def refusal(url: str) -> Response:
    with pytest.raises(InvalidStatus) as refused:
        await connect(url)
    return refused.value.response


async def test_a_websocket_too_many_is_told_so_before_it_opens_and_another_may_take_a_place_that_comes_free(client):
    deploy = ServerDeploy(max_websockets=2)
    app = create_app(client, ServerSettings(deploy), Drain())
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(listening(app, deploy))
        address = f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://{address}"))

        async def lines() -> list[str]:
            return (await http.get("/metrics")).text.splitlines()

        first = await stack.enter_async_context(connect(f"ws://{address}{STREAM}"))
        await stack.enter_async_context(connect(f"ws://{address}{REALTIME}"))
        assert 'antiphon_websockets_open{process="api-server/0"} 2.0' in await lines()
        for path in (STREAM, REALTIME):
            response = await refusal(f"ws://{address}{path}")
            assert (response.status_code, response.headers["retry-after"]) == (503, "5")
            error = json.loads(response.body)["error"]
            assert (error["type"], error["code"]) == ("overloaded_error", "overloaded")
            assert "server.max_websockets" in error["message"]
        assert (await http.get("/v1/models")).status_code == 200, "the bound is one of WebSockets only"

        counted = 'antiphon_http_requests_total{method="WEBSOCKET",process="api-server/0",route="%s",status="503"} 1.0'
        assert {counted % STREAM, counted % REALTIME} <= set(await lines())
        await first.close()

        async with asyncio.timeout(20):
            while 'antiphon_websockets_open{process="api-server/0"} 1.0' not in await lines():
                await asyncio.sleep(0.01)
        await stack.enter_async_context(connect(f"ws://{address}{STREAM}"))


async def test_a_websocket_that_is_refused_in_front_of_the_routes_counts_as_its_route(client):
    deploy = ServerDeploy()
    app = create_app(client, ServerSettings(deploy, api_key_digests=("0" * 64,)), Drain())
    async with listening(app, deploy) as server, httpx.AsyncClient() as http:
        address = f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        for path in (STREAM, REALTIME, "/v1/nowhere"):
            assert (await refusal(f"ws://{address}{path}")).status_code == 401
        page = (await http.get(f"http://{address}/metrics")).text
    for route in (STREAM, REALTIME, "unmatched"):
        assert f'{{method="WEBSOCKET",process="api-server/0",route="{route}",status="401"}} 1.0' in page


@pytest.mark.parametrize("path", [STREAM, REALTIME])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_plain_http_on_the_path_of_a_websocket_is_told_what_is_meant(http, path, method):
    answer = await http.request(method, path)
    assert (answer.status_code, answer.headers["upgrade"]) == (426, "websocket")
    error = answer.json()["error"]
    assert error["code"] == "upgrade_required" and "ws://" in error["message"] and path in error["message"]
