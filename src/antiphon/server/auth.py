"""Who may ask: the API key of every request under /v1/, HTTP and WebSocket alike.

In: the digests of the keys, a request's headers. Out: requests with a known key, or UnauthorizedError before any body
is read. Does not know: routes, what a key may do (all may do everything), where keys come from.
"""

from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest

from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.errors import UnauthorizedError

_GUARDED = "/v1"
_BEARER = b"bearer "
_SUBPROTOCOL = b"openai-insecure-api-key."
"""How OpenAI's clients send a key from a browser, whose WebSocket cannot set headers."""


class KeyRing:
    """Owns the SHA-256 digests (hex) of a server's keys; with none of them everybody may ask."""

    def __init__(self, digests: Sequence[str]) -> None:
        self._digests = tuple(digests)

    def check(self, scope: Scope) -> str:
        """The digest of the key that the request carries; "" if this server has no keys.

        UnauthorizedError if it has, and the request carries none of them. Every digest is compared, in constant time.
        """
        if not self._digests:
            return ""
        key = _key_of(scope)
        if not key:
            raise UnauthorizedError("this server wants an API key; send `Authorization: Bearer KEY`")
        given, found = sha256(key).hexdigest(), ""
        for digest in self._digests:
            if compare_digest(digest, given):
                found = digest
        if not found:
            raise UnauthorizedError("this API key is not one of this server's; ask its operator for one")
        return found


class KeyGate:
    """ASGI middleware: asks for the key in front of all that reads a body. Paths outside /v1/ are open."""

    def __init__(self, app: ASGIApp, *, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and _is_guarded(scope["path"]):
            scope.setdefault("state", {})["key_digest"] = self._keys.check(scope)
        await self._app(scope, receive, send)


def _is_guarded(path: str) -> bool:
    return path == _GUARDED or path.startswith(f"{_GUARDED}/")


def _key_of(scope: Scope) -> bytes:
    """The key of the Authorization header, else of a WebSocket's subprotocols; b"" if there is none."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    for name, value in headers:
        if name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
            return value[len(_BEARER) :].strip()
    if scope["type"] == "websocket":
        for name, value in headers:
            for offered in value.split(b",") if name == b"sec-websocket-protocol" else ():
                if offered.strip().startswith(_SUBPROTOCOL):
                    return offered.strip().removeprefix(_SUBPROTOCOL)
    return b""
