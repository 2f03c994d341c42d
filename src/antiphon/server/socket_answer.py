"""What one WebSocket's client is told: an HTTP answer while it is not accepted, then events and a closing code.

In: the app's ASGI messages, or the error that ended it. Out: ASGI messages; x-request-id on the handshake's answer.
Does not know: routes, what the events are about.
"""

import secrets

import msgspec
from starlette.types import Message, Receive, Scope, Send
from websockets.frames import CloseCode

from antiphon.errors import AntiphonError, OverloadedError, RequestError
from antiphon.server.http_errors import envelope, error_response, no_such_route

_ACCEPTED = 101


def error_event(error: AntiphonError, client_event_id: str = "") -> dict[str, object]:
    """An error as OpenAI's WebSocket clients read it; client_event_id: the `event_id` of the event it is about."""
    details = {**envelope(error)["error"], "event_id": client_event_id or None}
    return {"type": "error", "event_id": new_event_id(), "error": details}


def new_event_id() -> str:
    """A fresh id, e.g. `event_9f86d081884c7d65`: every event that a server sends has one."""
    return f"event_{secrets.token_hex(8)}"


class SocketAnswer:
    """Owns how far one WebSocket has come.

    status: 0 at first, 101 from its acceptance on, or the HTTP status that it was refused or has failed with. An error
    after the acceptance is the last event; the code that closes the WebSocket says whose fault it is.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, shown_id: str) -> None:
        self.status = 0
        self._scope = scope
        self._receive = receive
        self._send = send
        self._id_header = (b"x-request-id", shown_id.encode())
        self._is_closed = False

    async def send(self, message: Message) -> None:
        """Pass a message of the app on. A close before the acceptance is what Starlette says to a path that is not."""
        match message["type"]:
            case "websocket.close" if self.status == 0:
                return await no_such_route(self._scope["path"])(self._scope, self._receive, self.send)
            case "websocket.accept" | "websocket.http.response.start":
                self.status = message.get("status", _ACCEPTED)
                message["headers"] = [*message.get("headers", ()), self._id_header]
            case "websocket.close":
                self._is_closed = True
        await self._send(message)

    async def fail(self, error: AntiphonError) -> None:
        """Say `error` in the way that is still open; a client that has gone is told nothing."""
        response = error_response(error)
        if self.status == 0:
            return await response(self._scope, self._receive, self.send)
        self.status = response.status_code
        if self._is_closed:
            return
        try:
            text = msgspec.json.encode(error_event(error)).decode()
            await self._send({"type": "websocket.send", "text": text})
            await self._send({"type": "websocket.close", "code": _close_code(error), "reason": error.code})
        except OSError:
            pass  # uvicorn's word for a client that has gone


def _close_code(error: AntiphonError) -> CloseCode:
    match error:
        case RequestError():
            return CloseCode.POLICY_VIOLATION
        case OverloadedError(code="shutting_down"):
            return CloseCode.SERVICE_RESTART
        case OverloadedError():
            return CloseCode.TRY_AGAIN_LATER
        case _:
            return CloseCode.INTERNAL_ERROR
