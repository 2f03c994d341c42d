"""Which web pages of other origins may use this server: the CORS protocol.

In: the operator's origins, a request's Origin. Out: the headers by which a browser lets the page read the answer, and
the answers to its preflight requests. Does not know: routes, keys (a preflight request carries none).
"""

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_EXPOSED = b"x-request-id, retry-after, link"
_MAX_AGE_S = 600


class Origins:
    """Knows whom the operator lets in: origins like https://voice.example, separated by commas; `*` is everybody."""

    def __init__(self, text: str) -> None:
        self._names = frozenset(name.strip().encode() for name in text.split(",") if name.strip())

    def __bool__(self) -> bool:
        return bool(self._names)

    def headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """What a browser wants to see in the answer."""
        if b"*" in self._names:
            return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", _EXPOSED)]
        vary = (b"vary", b"Origin")
        if not self.lets_in(scope):
            return [vary]
        origin = _header(scope, b"origin")
        return [vary, (b"access-control-allow-origin", origin), (b"access-control-expose-headers", _EXPOSED)]

    def lets_in(self, scope: Scope) -> bool:
        """True if the request comes from a page of one of the origins."""
        origin = _header(scope, b"origin")
        return bool(origin) and (b"*" in self._names or origin in self._names)


class Cors:
    """ASGI middleware, outermost: every answer has the headers, errors too, so that the page can read what is wrong."""

    def __init__(self, app: ASGIApp, *, origins: Origins) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._origins.headers(scope)]
            await send(message)

        await self._app(scope, receive, send_with_headers)


class Preflight:
    """ASGI middleware, in front of the keys: answers what a browser asks before it sends a page's request.

    Everything that is asked for is allowed: what a page may do is not less than what its user may do.
    """

    def __init__(self, app: ASGIApp, *, origins: Origins) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = _header(scope, b"access-control-request-method") if scope["type"] == "http" else b""
        if not asked or scope["method"] != "OPTIONS" or not self._origins.lets_in(scope):
            return await self._app(scope, receive, send)
        headers = {
            "access-control-allow-methods": "GET, POST",
            "access-control-allow-headers": _header(scope, b"access-control-request-headers").decode("latin-1"),
            "access-control-max-age": str(_MAX_AGE_S),
        }
        await Response(status_code=204, headers=headers)(scope, receive, send)


def _header(scope: Scope, wanted: bytes) -> bytes:
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    return next((value for name, value in headers if name == wanted), b"")
