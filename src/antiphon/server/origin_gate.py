"""Which web pages may use this server: its own, those of the operator's origins, and whoever has a key.

In: a request's Host and Origin. Out: the request, or ForbiddenError before its body is read or its WebSocket opens.
Does not know: routes, keys (only that one was given).

A browser sends what any page asks it to, also to this machine. Two ways in are closed here: a page of another origin,
which Origin names, and a page whose own name is made to mean this machine, which Host has then. Other clients send no
Origin, and as Host what they were told to call.
"""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.config.deploy import ServerDeploy
from antiphon.errors import ForbiddenError
from antiphon.server.callers import is_address
from antiphon.server.cors import Origins

_HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})
"""They change nothing and cost no stage any work; what they answer no page of another origin can read."""
_LOCAL_NAMES = frozenset({"localhost", "host.docker.internal"})
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_MAX_SHOWN_CHARS = 80


class HostNames:
    """Knows by which names this server may be called: addresses, this machine's own names, and the operator's.

    No name server has a say in those. allowed_hosts: names, separated by commas; `*` is every name, and so is "" if
    `host`, which the server listens on, can be reached from other machines.
    """

    def __init__(self, host: str, allowed_hosts: str) -> None:
        names = {name.strip().lower() for name in allowed_hosts.split(",") if name.strip()}
        self._names = _LOCAL_NAMES | names
        self._is_any = "*" in names or not (names or _is_loopback(host))

    def check(self, host: str) -> None:
        """ForbiddenError unless `host`, a Host header, is one of them; one that is not sent is fine."""
        name = _name_of(host)
        if self._is_any or not name or name in self._names or name.endswith(".localhost") or is_address(name):
            return
        raise ForbiddenError(
            f"this server does not answer to the name {name[:_MAX_SHOWN_CHARS]!r}; call it localhost or by its "
            "address, or name it in server.allowed_hosts",
            code="host_not_allowed",
        )


class OriginGate:
    """ASGI middleware, behind the keys: who has one may come from anywhere, since no foreign page knows it."""

    def __init__(self, app: ASGIApp, *, settings: ServerDeploy, origins: Origins) -> None:
        self._app = app
        self._names = HostNames(settings.host, settings.allowed_hosts)
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            headers = Headers(scope=scope)
            host, origin = headers.get("host", ""), headers.get("origin", "")
            self._names.check(host)
            if origin and scope.get("method") not in _HARMLESS and not scope["state"].get("key_digest"):
                self._check_origin(scope, origin, host)
        await self._app(scope, receive, send)

    def _check_origin(self, scope: Scope, origin: str, host: str) -> None:
        if not _is_same(origin, host) and not self._origins.lets_in(scope):
            raise ForbiddenError(
                f"pages of the origin {origin[:_MAX_SHOWN_CHARS]!r} may not use this server, which was called "
                f"{host[:_MAX_SHOWN_CHARS]!r}; name the origin in server.cors_origins, or, if this is the server's "
                "own page behind a proxy, let the proxy pass on the Host header",
                code="origin_not_allowed",
            )


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host == "::1" or (is_address(host) and host.startswith("127."))


def _name_of(host: str) -> str:
    """`_name_of("[::1]:8000") == "::1"`."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.strip().rstrip(".").lower()


def _is_same(origin: str, host: str) -> bool:
    """True for a page that came from where this request went. https: a proxy has taken the TLS off."""
    scheme, _, authority = origin.lower().partition("://")
    port = _DEFAULT_PORTS.get(scheme)
    return port is not None and authority.removesuffix(port) == host.lower().removesuffix(port)
