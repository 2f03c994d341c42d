"""Who asks, and whether there is room for them: both settled before a body is read.

In: a request's key digest or address, what is known of admission. Out: an opaque client name; OverloadedError (503).
Does not know: routes other than which ones need a place, how clients take turns.
"""

from hashlib import blake2b
from ipaddress import IPv6Address, IPv6Network, ip_address, ip_network

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.client.admission_view import AdmissionView
from antiphon.errors import ConfigError

_IPV6_PREFIX_BITS = 64


def client_of(connection: HTTPConnection) -> str:
    """The opaque name of the client of this request or WebSocket."""
    name: str = connection.state.client
    return name


class Callers:
    """Tells clients apart: by API key if the server has keys, else by address.

    trusted_proxies: addresses and networks, separated by commas, whose X-Forwarded-For is believed; ConfigError if one
    is none. Of an IPv6 address the first 64 bits count: one subscriber has all of the rest.
    """

    def __init__(self, trusted_proxies: str = "") -> None:
        names = [name.strip() for name in trusted_proxies.split(",") if name.strip()]
        try:
            self._trusted = tuple(ip_network(name, strict=False) for name in names)
        except ValueError as error:
            raise ConfigError(
                [f"server.trusted_proxies: {error}; write addresses or networks like 10.0.0.0/8"]
            ) from None

    def name(self, scope: Scope) -> str:
        """An opaque name of the client, from which neither key nor address can be read off."""
        key_digest: str = scope.get("state", {}).get("key_digest", "")
        return blake2b((key_digest or self._address(scope)).encode(), digest_size=8).hexdigest()

    def _address(self, scope: Scope) -> str:
        """The peer's, or the last one before the trusted proxies; what is no address ends the search."""
        peer = scope["client"][0] if scope.get("client") else ""
        forwarded = [
            hop.strip().decode("latin-1")
            for name, value in scope["headers"]
            if name == b"x-forwarded-for"
            for hop in value.split(b",")
        ]
        while forwarded and self._is_trusted(peer) and is_address(forwarded[-1]):
            peer = forwarded.pop()
        if not is_address(peer):
            return peer
        address = ip_address(peer)
        if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
            return str(IPv6Network((address, _IPV6_PREFIX_BITS), strict=False))
        return peer

    def _is_trusted(self, name: str) -> bool:
        return is_address(name) and any(ip_address(name) in network for network in self._trusted)


class AdmissionGate:
    """ASGI middleware: names the client of every request, and refuses what would get no place.

    Every POST under /v1/ needs a place. The orchestrator decides; here only what it has said is repeated, early.
    """

    def __init__(self, app: ASGIApp, *, callers: Callers, admission: AdmissionView) -> None:
        self._app = app
        self._callers = callers
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            name = self._callers.name(scope)
            scope.setdefault("state", {})["client"] = name
            if scope.get("method") == "POST" and scope["path"].startswith("/v1/"):
                self._admission.check(name)
        await self._app(scope, receive, send)


def is_address(name: str) -> bool:
    """True for an IPv4 or IPv6 address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
