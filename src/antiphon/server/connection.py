"""One HTTP connection: uvicorn's protocol, with deadlines for a client that does not read and one that does not send.

In: bytes, and the transport's word that bytes wait. Out: uvicorn's requests; a reset once the client's time is up.
Does not know: routes, bodies, tasks.
"""

import asyncio
import logging
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from antiphon.config.deploy import ServerDeploy
from antiphon.errors import InvalidRequestError
from antiphon.ids import new_request_id
from antiphon.server.http_errors import error_response
from antiphon.server.read_clock import ReadClock, reset
from antiphon.server.socket_connection import PING_S, SocketConnection

_log = logging.getLogger(__name__)
_MAX_HEAD_BYTES = 1 << 16
"""Of a request's line and headers, which come before any key could be looked at, and are kept in memory."""


class ConnectionConfig(uvicorn.Config):
    """uvicorn's settings of an api-server, and the operator's deadlines. Use it with uvicorn.Server and `sockets`.

    uvicorn logs warnings only: its own line for each WebSocket has the query string, in which clients send keys.
    """

    def __init__(self, app: ASGIApp, settings: ServerDeploy) -> None:
        super().__init__(
            app,
            loop="none",
            http=Connection,
            ws=SocketConnection,
            ws_max_size=settings.max_body_mib << 20,
            ws_ping_interval=PING_S,
            ws_ping_timeout=settings.client_read_deadline_s,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,  # uvicorn would believe X-Forwarded-For from all of this machine; see callers.py
        )
        self.settings = settings


class Connection(HttpToolsProtocol):
    """Owns two clocks: one runs while bytes wait for the client, the other while the head of a request is awaited.

    Also the size of that head: beyond 64 KiB, and what is read at once, it is refused.

    Bytes wait in the transport only while the kernel takes no more: at most one ASGI message, and what sends the next
    one waits. So the first clock also bounds a response whose last byte has been handed over, and one that is made
    while it is sent. When the connection is reset, uvicorn tells the request that its client has gone.
    """

    def __init__(
        self,
        config: ConnectionConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._settings = config.settings
        self._read_clock: ReadClock | None = None
        self._send_clock: asyncio.TimerHandle | None = None
        self._is_in_head = False
        self._num_head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Waits for the first request from now on."""
        super().connection_made(transport)
        self._read_clock = ReadClock(transport, self._settings.client_read_deadline_s, self._request_id)
        self._start_send_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._stop_clocks()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """After a response, any byte counts as a request's first: also the rest of a body that nobody wants."""
        if self._send_clock is None and (self.cycle is None or self.cycle.response_complete):
            self._start_send_clock()
        super().data_received(data)
        if self._is_in_head and not self.transport.is_closing():
            self._num_head_bytes += len(data)
            if self._num_head_bytes > _MAX_HEAD_BYTES:
                self.send_400_response(f"the head of a request is larger than {_MAX_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        """A request's first byte."""
        self._start_send_clock()
        self._is_in_head, self._num_head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is here; BodyLimit watches the body, until there is a response."""
        self._stop_send_clock()
        self._is_in_head = False
        super().on_headers_complete()

    def handle_websocket_upgrade(self) -> None:
        """From here on the connection is a SocketConnection's, which has its own clock."""
        self._stop_clocks()
        super().handle_websocket_upgrade()

    def pause_writing(self) -> None:
        """Bytes wait for the client."""
        super().pause_writing()
        if self._read_clock is not None:
            self._read_clock.start()

    def resume_writing(self) -> None:
        """The client has everything."""
        if self._read_clock is not None:
            self._read_clock.stop()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Bytes that are no HTTP: an envelope as for every error, unless a response is on its way already.

        Where they should be a request's body, that is its answer: what is made of it is sent nowhere.
        """
        cycle = self.cycle
        if cycle is not None and cycle.more_body and not cycle.response_started and not self.pipeline:
            cycle.disconnected = True
            cycle.message_event.set()
        if cycle is None or cycle.response_complete or cycle.disconnected:
            response = error_response(InvalidRequestError(msg, code="invalid_http"))
            response.headers["x-request-id"] = new_request_id()
            response.headers["connection"] = "close"
            head = b"".join(b"%b: %b\r\n" % header for header in response.raw_headers)
            self.transport.write(STATUS_LINE[400] + head + b"\r\n" + bytes(response.body))
        self.transport.close()

    def _send_expired(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:  # earlier requests are served first
            return self._start_send_clock()
        _log.warning(
            "req=%s: its client (%s) did not send the whole request in %g s; the connection is reset; "
            "raise server.client_send_deadline_s for slower clients",
            *(self._request_id(), self.client, self._settings.client_send_deadline_s),
        )
        reset(self.transport)

    def _request_id(self) -> str:
        """The last request on this connection, "none" before the first one's head."""
        return "none" if self.cycle is None else str(self.cycle.scope["state"].get("request_id", "none"))

    def _start_send_clock(self) -> None:
        self._stop_send_clock()
        self._send_clock = self.loop.call_later(self._settings.client_send_deadline_s, self._send_expired)

    def _stop_send_clock(self) -> None:
        if self._send_clock is not None:
            self._send_clock.cancel()
            self._send_clock = None

    def _stop_clocks(self) -> None:
        self._stop_send_clock()
        if self._read_clock is not None:
            self._read_clock.stop()
