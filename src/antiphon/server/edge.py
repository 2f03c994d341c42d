"""The outermost layer of the server: every request and WebSocket gets an id, exactly one answer, a log line, a count.

In: any ASGI request or WebSocket, and whatever the layers inside raise. Out: x-request-id on every response, errors as
envelopes. Does not know: routes, bodies, tasks.
"""

import logging
import re
import time
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.errors import AntiphonError, RequestAbortedError
from antiphon.ids import RequestId, new_request_id
from antiphon.server.drain import Drain
from antiphon.server.event_schema import SOCKETS
from antiphon.server.http_errors import error_response, internal_error
from antiphon.server.metrics import HttpMetrics
from antiphon.server.openapi import ANSWERS
from antiphon.server.request_clock import RequestClock
from antiphon.server.socket_answer import SocketAnswer

_log = logging.getLogger(__name__)
_PLAIN_ROUTES = frozenset((*(name.partition(" ")[2] for name in ANSWERS if "{" not in name), *SOCKETS))
_POLLED = frozenset({"/page/overview.json"})
"""Every second, by every web page that is open: no line in the log."""
_SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


def request_id_of(request: HTTPConnection) -> RequestId:
    """The id of this request in every process: ours, never the client's, so that two requests cannot share it."""
    request_id: RequestId = request.state.request_id
    return request_id


@dataclass(frozen=True)
class RequestIds:
    """own: the id of a request in every process. shown: its x-request-id, which is the client's own if it gave one."""

    own: RequestId
    shown: str


def request_ids_of(request: HTTPConnection) -> RequestIds:
    """Both ids of this request."""
    own = request_id_of(request)
    return RequestIds(own, _client_given_id(request.scope) or own)


def clock_of(request: HTTPConnection) -> RequestClock:
    """The clock of this request; it runs since its arrival."""
    clock: RequestClock = request.state.clock
    return clock


class _Answer(Protocol):
    """What one request or WebSocket is told; `status` is 0 until it is told something."""

    status: int

    async def send(self, message: Message) -> None:
        """Pass a message of the app on."""

    async def fail(self, error: AntiphonError) -> None:
        """Say `error` in the way that is still open."""


class _HttpAnswer:
    """Owns the status of one response.

    A failure before the first byte becomes its envelope. After the first byte of a body without error events, the
    connection is closed in mid-body: the only way left to tell the client that the rest is missing.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, shown_id: str, drain: Drain) -> None:
        self.status = 0
        self._scope = scope
        self._receive = receive
        self._send = send
        self._shown_id = shown_id
        self._drain = drain

    async def send(self, message: Message) -> None:
        """See _Answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self._shown_id.encode())]
            if self._drain.is_draining:
                message["headers"].append((b"connection", b"close"))
        await self._send(message)

    async def fail(self, error: AntiphonError) -> None:
        """See _Answer."""
        response = error_response(error)
        if self.status == 0:
            await response(self._scope, self._receive, self.send)
        self.status = response.status_code


class RequestEdge:
    """ASGI middleware; owns nothing but the counts it adds to."""

    def __init__(self, app: ASGIApp, *, metrics: HttpMetrics, drain: Drain) -> None:
        self._app = app
        self._metrics = metrics
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        request_id = new_request_id()
        clock = RequestClock(self._metrics)
        scope.setdefault("state", {}).update(request_id=request_id, clock=clock)
        shown_id = _client_given_id(scope) or request_id
        answer: _Answer
        if scope["type"] == "websocket":
            answer, method = SocketAnswer(scope, receive, send, shown_id), "WEBSOCKET"
        else:
            answer, method = _HttpAnswer(scope, receive, send, shown_id, self._drain), scope["method"]
        try:
            await self._app(scope, receive, answer.send)
            clock.last_byte()
        except Exception as error:  # the edge of an HTTP handler: whatever failed, this client is told, others go on
            await answer.fail(_told(error, request_id))
        duration_s = time.perf_counter() - clock.started_s
        self._metrics.count_request(_route(scope), method, answer.status, duration_s)
        _log.log(
            logging.DEBUG if scope["path"] in _POLLED else logging.INFO,
            "req=%s client_id=%s method=%s path=%s status=%d duration_s=%.3f",
            *(request_id, shown_id, method, scope["path"], answer.status, duration_s),
        )


def _told(error: Exception, request_id: RequestId) -> AntiphonError:
    """What the client hears of `error`."""
    match error:
        case ClientDisconnect():
            return RequestAbortedError(f"{request_id}: its client hung up while it was sending")
        case AntiphonError():
            if error.http_status >= 500:
                _log.warning("req=%s failed: %s: %s", request_id, type(error).__name__, error.message)
            return error
        case _:
            _log.error("req=%s failed inside the server", request_id, exc_info=error)
            return internal_error(request_id)


def _client_given_id(scope: Scope) -> str:
    """The client's x-request-id if it is short and plain, else ""."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text = str(value, "latin-1")
            return text if _SANE_ID.fullmatch(text) else ""
    return ""


def _route(scope: Scope) -> str:
    """The route's template, a label of few values; "unmatched" for paths that are not ours.

    What is refused in front of the routes has none yet: then the path is looked up.
    """
    route = scope.get("route")
    if route is not None:
        return str(route.path)
    return str(scope["path"]) if scope["path"] in _PLAIN_ROUTES else "unmatched"
