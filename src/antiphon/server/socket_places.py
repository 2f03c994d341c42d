"""How many WebSockets one api-server has open at once: each takes memory as long as its client likes.

In: every WebSocket, before it opens. Out: the same, or OverloadedError (503 with Retry-After).
Does not know: routes, what is said over them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.errors import OverloadedError

_RETRY_AFTER_S = 5.0
"""Nobody knows when a client will leave."""


class SocketPlaces:
    """Owns the places. num_taken: WebSockets that have begun and are not over."""

    def __init__(self, max_websockets: int) -> None:
        self.num_taken = 0
        self._max_websockets = max_websockets

    @contextmanager
    def one(self) -> Iterator[None]:
        """A place for the time of the block; OverloadedError if there is none."""
        if self.num_taken >= self._max_websockets:
            raise OverloadedError(
                f"this server has {self.num_taken} WebSockets open, which is its limit (server.max_websockets); "
                "connect again later",
                retry_after_s=_RETRY_AFTER_S,
            )
        self.num_taken += 1
        try:
            yield
        finally:
            self.num_taken -= 1


class SocketGate:
    """ASGI middleware in front of the routes: a WebSocket runs in its place."""

    def __init__(self, app: ASGIApp, *, places: SocketPlaces) -> None:
        self._app = app
        self._places = places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            return await self._app(scope, receive, send)
        with self._places.one():
            await self._app(scope, receive, send)
