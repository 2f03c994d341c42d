"""The paths of WebSockets, asked for by plain HTTP: by a browser's address bar, or through a proxy that drops headers.

In: GET or POST. Out: UpgradeRequiredError (426). Does not know: what is said over a WebSocket.
"""

from fastapi import APIRouter, Request
from starlette.responses import Response

from antiphon.errors import UpgradeRequiredError
from antiphon.server.event_schema import SOCKETS


def no_socket_router() -> APIRouter:
    """In front of routes whose templates would take these paths for something else."""
    router = APIRouter(include_in_schema=False)

    async def want_upgrade(request: Request) -> Response:
        raise UpgradeRequiredError(
            f"{request.url.path} is a WebSocket; connect to it as ws:// or wss://, and let a proxy in between pass on "
            "the headers Upgrade and Connection"
        )

    for path in SOCKETS:
        router.add_api_route(path, want_upgrade, methods=["GET", "POST"])
    return router
