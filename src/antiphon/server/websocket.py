"""Events over one WebSocket: JSON objects in, one by one and checked; JSON objects and binary messages out, in order.

In: a WebSocket, and the kinds of events that its client may send. Out: validated events; events for the client.
Does not know: what events mean, which routes there are.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Generic, Self, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from antiphon.config.deploy import ServerDeploy
from antiphon.errors import AntiphonError, InvalidRequestError, RequestAbortedError, RequestTimeoutError
from antiphon.server.http_errors import invalid_request
from antiphon.server.socket_answer import error_event

_encode = msgspec.json.Encoder().encode
_objects = msgspec.json.Decoder(dict[str, object])
_ROOM_BYTES = 1 << 16
_MAX_WAITING_BYTES = 1 << 20


class ClientEvent(BaseModel):
    """What a client sends: one JSON object. Unknown fields are ignored; `event_id` comes back in an error about it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    event_id: str | None = Field(default=None, max_length=512, description="The client's own name of this event.")


Event = TypeVar("Event", bound=ClientEvent)


class EventSocket(Generic[Event]):
    """Owns the events that wait for one client. Iterate it in one task, without long pauses: pings are answered there.

    Iterating gives the client's events until it closes the WebSocket. A message that is no event is told to the client
    as an error event, and the next one is waited for. RequestTimeoutError if nothing was said for `websocket_idle_s`.
    """

    def __init__(self, websocket: WebSocket, kinds: Mapping[str, type[Event]], idle_s: float) -> None:
        self._websocket = websocket
        self._kinds = kinds
        self._idle_s = idle_s
        self._said_s = asyncio.get_running_loop().time()
        self._waiting: deque[str | bytes] = deque()
        self._num_waiting_bytes = 0
        self._has_come, self._has_left = asyncio.Event(), asyncio.Event()
        self._is_finishing = self._is_over = False

    def send(self, event: Mapping[str, object]) -> None:
        """Queue an event. Who makes many of them waits for `room` before each; dropped when the client has gone."""
        self._queue(_encode(event).decode())

    def send_bytes(self, data: bytes) -> None:
        """Queue a binary message, for clients that asked for such; as `send` otherwise."""
        self._queue(data)

    def _queue(self, message: str | bytes) -> None:
        if self._is_over:
            return
        self._waiting.append(message)
        self._num_waiting_bytes += len(message)
        self._said_s = asyncio.get_running_loop().time()
        self._has_come.set()

    def tell(self, error: AntiphonError, event: ClientEvent | None = None) -> None:
        """Queue an error event; `event` is what it is about."""
        self.send(error_event(error, (event and event.event_id) or ""))

    async def room(self) -> None:
        """Wait until the client has taken most of what it was sent. RequestAbortedError if it has gone.

        A client that takes nothing is cut off by its connection, and has gone then.
        """
        await self._shrink(_ROOM_BYTES)
        if self._is_over:
            raise RequestAbortedError("the client has gone")

    def finish(self) -> None:
        """Nothing more comes: `send_all` ends when all that is queued has left."""
        self._is_finishing = True
        self._has_come.set()

    async def send_all(self) -> None:
        """Send what is queued, until `finish` or until the client has gone."""
        try:
            while self._waiting or not self._is_finishing:
                if not self._waiting:
                    self._has_come.clear()
                    await self._has_come.wait()
                    continue
                message = self._waiting[0]
                if isinstance(message, str):
                    await self._websocket.send_text(message)
                else:
                    await self._websocket.send_bytes(message)
                self._num_waiting_bytes -= len(self._waiting.popleft())
                self._has_left.set()
        except WebSocketDisconnect:
            pass
        finally:
            self._is_over = True
            self._waiting.clear()
            self._has_left.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while True:
            await self._shrink(_MAX_WAITING_BYTES)
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                raise StopAsyncIteration
            try:
                return self._event(message)
            except _NotAnEvent as problem:
                self.send(error_event(problem.error, problem.event_id))

    async def _shrink(self, num_bytes: int) -> None:
        while self._num_waiting_bytes > num_bytes and not self._is_over:
            self._has_left.clear()
            await self._has_left.wait()

    async def _receive(self) -> Message:
        while True:
            ends_s = self._said_s + self._idle_s
            try:
                async with asyncio.timeout_at(ends_s):
                    message = await self._websocket.receive()
            except TimeoutError:
                if self._said_s + self._idle_s > ends_s:
                    continue
                raise RequestTimeoutError(
                    f"neither side has said anything for {self._idle_s:g} s; connect again or raise "
                    "server.websocket_idle_s",
                    code="session_idle",
                ) from None
            self._said_s = asyncio.get_running_loop().time()
            return message

    def _event(self, message: Message) -> Event:
        """The event in a message; raises _NotAnEvent."""
        text = message.get("text")
        if text is None:
            raise _NotAnEvent("events are JSON objects in text messages, and this was a binary message")
        try:
            fields = _objects.decode(text)
        except msgspec.DecodeError as error:
            raise _NotAnEvent(f"an event is one JSON object: {error}") from None
        except RecursionError:
            raise _NotAnEvent("an event is one JSON object, and this one is nested too deeply") from None
        given, event_id = fields.get("type"), fields.get("event_id")
        kind = self._kinds.get(given) if isinstance(given, str) else None
        if kind is None:
            shown = f"`type` is {given[:80]!r}" if isinstance(given, str) else "`type` is missing"
            raise _NotAnEvent(f"{shown}; it is one of {', '.join(self._kinds)}", event_id, param="type")
        try:
            return kind.model_validate(fields)
        except ValidationError as error:
            problems = [{**problem, "loc": ("event", *problem["loc"])} for problem in error.errors()]
            raise _NotAnEvent("", event_id, error=invalid_request(problems)) from None


class _NotAnEvent(Exception):
    """A message that the client hears an error about."""

    def __init__(
        self, problem: str, event_id: object = None, *, param: str = "", error: InvalidRequestError | None = None
    ) -> None:
        super().__init__(problem)
        self.error = error or InvalidRequestError(problem, param=param, code="invalid_event")
        self.event_id = event_id if isinstance(event_id, str) else ""


@asynccontextmanager
async def event_socket(
    websocket: WebSocket, kinds: Mapping[str, type[Event]], settings: ServerDeploy, *, subprotocol: str = ""
) -> AsyncIterator[EventSocket[Event]]:
    """Accept, and at the end of the block send what is queued and close. kinds: `type` -> what such an event holds.

    subprotocol: the one to choose if the client offers it, as browsers' clients of some APIs do.

    What the block raises is told to the client by RequestEdge, behind what is queued: a last error event and a code.
    RequestTimeoutError if it takes longer than `websocket_max_s`.
    """
    await websocket.accept(subprotocol if subprotocol in websocket.scope["subprotocols"] else None)
    socket = EventSocket(websocket, kinds, settings.websocket_idle_s)
    sending = asyncio.create_task(socket.send_all())
    try:
        async with asyncio.timeout(settings.websocket_max_s) as limit:
            yield socket
    except TimeoutError:
        if not limit.expired():
            raise
        raise RequestTimeoutError(
            f"a WebSocket is open for at most {settings.websocket_max_s:g} s; connect again or raise "
            "server.websocket_max_s",
            code="session_expired",
        ) from None
    finally:
        socket.finish()
        await sending
    if websocket.application_state is WebSocketState.CONNECTED:  # no sending has failed
        with suppress(WebSocketDisconnect):
            await websocket.close()
