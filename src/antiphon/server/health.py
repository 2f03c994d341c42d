"""/health: this process answers. /ready: every stage has a live replica, and new requests are taken.

In: the engine client's count of live replicas per stage. Out: 200, or 503 naming the stages that miss one.
Does not know: why a replica is missing.
"""

from fastapi import APIRouter
from starlette.responses import Response

from antiphon.client.engine_client import EngineClient
from antiphon.errors import OverloadedError
from antiphon.server.drain import Drain
from antiphon.server.http_errors import error_response, json_response


def health_router(client: EngineClient, drain: Drain) -> APIRouter:
    """GET /health and /ready."""
    router = APIRouter()

    @router.get("/health", summary="200 while the process is up")
    async def health() -> Response:
        return json_response({"status": "ok"})

    @router.get("/ready", summary="200 when every stage has a live replica, else 503")
    async def ready() -> Response:
        drain.check()
        num_live = client.live_replicas()
        missing = [stage for stage, count in num_live.items() if count == 0]
        if not missing:
            return json_response({"status": "ready", "stages": num_live})
        return error_response(
            OverloadedError(
                f"no live replica of {', '.join(missing)}; try again shortly, or see the logs of these stages",
                code="not_ready",
            )
        )

    return router
