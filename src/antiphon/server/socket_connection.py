"""One WebSocket connection: uvicorn's protocol, bounded against clients that do not read, flood, or only pretend.

In: the bytes of a handshake and then of frames. Out: uvicorn's ASGI messages; a reset or a close code.
Does not know: routes, events, tasks.
"""

import asyncio
from typing import Any, cast

from uvicorn._types import ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame
from websockets.http11 import Response
from websockets.server import ServerProtocol

from antiphon.errors import InvalidRequestError
from antiphon.ids import new_request_id
from antiphon.server.http_errors import error_response
from antiphon.server.read_clock import ReadClock, reset

PING_S = 20.0
"""How often a client is asked whether it is there. Its answer has `client_read_deadline_s`."""
_MAX_WAITING = 1024
"""Messages that came at once, and pieces of one message."""
_MAX_PONG_BYTES = 1 << 16


class _Handshake(ServerProtocol):
    """Refuses in the error envelope, as every other route does."""

    def reject(self, status: int, text: str) -> Response:
        """The answer to a handshake that cannot be accepted: `status` is the protocol's (400, 426)."""
        error = error_response(InvalidRequestError(text.strip(), code="invalid_handshake"))
        response = super().reject(status, bytes(error.body).decode())
        del response.headers["Content-Type"]  # setting one adds another
        response.headers["Content-Type"] = "application/json"
        response.headers["x-request-id"] = new_request_id()
        return response


class SocketConnection(WebSocketsSansIOProtocol):
    """Owns the clock that runs while bytes wait for the client, also after the closing frame.

    uvicorn stops reading while messages wait for the app, and sends one message at a time; what it does not bound is
    bounded here: messages that come in one read, pieces of one message, and pongs for a client that reads none.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        assert config.ws_ping_timeout is not None, "ConnectionConfig sets it"
        self._read_deadline_s = config.ws_ping_timeout
        self._read_clock: ReadClock | None = None
        self.conn = _Handshake(max_size=config.ws_max_size, logger=self.logger)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The request's head is complete by now."""
        super().connection_made(transport)
        stream = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance
        self._read_clock = ReadClock(stream, self._read_deadline_s, self._request_id)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        if self._read_clock is not None:
            self._read_clock.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of the handshake, whole, then of frames. What asks for a WebSocket and cannot have one gets a 400."""
        super().data_received(data)
        if not self.handshake_initiated and not self.transport.is_closing():
            response = self.conn.reject(400, "a WebSocket is asked for with an HTTP/1.1 GET without a body")
            self.transport.write(response.serialize())
            self.transport.close()

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

    async def send(self, message: ASGISendEvent) -> None:
        """As uvicorn does; a WebSocket that it has closed itself (a message too large, no pong) is a client gone."""
        await self.writable.wait()
        if self.close_sent:
            raise ClientDisconnected
        await super().send(message)

    def handle_ping(self) -> None:
        """Answered at once, unless the client reads no answer."""
        if self.transport.get_write_buffer_size() > _MAX_PONG_BYTES:
            return reset(self.transport)
        super().handle_ping()

    def handle_cont(self, event: Frame) -> None:
        """A further piece of a message."""
        if len(self.frames) >= _MAX_WAITING:
            return self._refuse(f"a message has more than {_MAX_WAITING} pieces")
        super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        """A whole message."""
        if self.queue.qsize() >= _MAX_WAITING:
            return self._refuse(f"more than {_MAX_WAITING} messages at once")
        super().send_receive_event_to_app()

    def _refuse(self, why: str) -> None:
        if not self.close_sent:
            self.conn.fail(CloseCode.POLICY_VIOLATION, why)
            self.handle_parser_exception()

    def _request_id(self) -> str:
        """ "none" before the handshake."""
        return str(self.scope["state"].get("request_id", "none")) if self.handshake_initiated else "none"
