"""What one api-server refuses before any stage hears of it: bodies too large, of too many values, or too slow.

In: ServerDeploy and ASGI messages. Out: the same messages, or one 413 or 408 in the error envelope.
Does not know: routes, tasks, what the values are.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.config.deploy import ServerDeploy
from antiphon.errors import RequestAbortedError, RequestError, RequestTimeoutError, RequestTooLargeError
from antiphon.server.http_errors import error_response

_MIB = 1 << 20
_MAX_COMMAS = 50_000
"""Of a JSON body, beside those of the longest text: there is one for each value. To check values takes time, in which
nothing else is served: 16 MiB of short messages took 20 s."""


class _Body:
    """Owns the size and the clock of one body on its way in; `refusal` says why it is not taken, once it is not."""

    def __init__(self, receive: Receive, settings: ServerDeploy, *, is_form: bool) -> None:
        self.refusal: RequestError | None = None
        self._is_form = is_form
        self._num_commas = 0
        self._receive = receive
        self._settings = settings
        self._ends_s = asyncio.get_running_loop().time() + settings.client_send_deadline_s
        self._num_bytes = 0
        self._is_complete = False

    async def receive(self) -> Message:
        """The next message; raises the refusal. After the body nothing is refused: the client may hang up late."""
        if self.refusal is not None:
            raise self.refusal
        if self._is_complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._ends_s):
                message = await self._receive()
        except TimeoutError:
            self.refusal = RequestTimeoutError(self._too_slow())
            raise self.refusal from None
        self._take(message)
        if self.refusal is not None:
            raise self.refusal
        return message

    def _take(self, message: Message) -> None:
        data = message.get("body", b"")
        self._num_bytes += len(data)
        self._num_commas += 0 if self._is_form else data.count(b",")
        self._is_complete = not message.get("more_body", False)
        if message["type"] == "http.disconnect":
            self.refusal = RequestAbortedError(f"the client hung up after {self._num_bytes} bytes of the body")
        elif self._num_bytes > _max_bytes(self._settings):
            self.refusal = _too_large(self._settings)
        elif self._num_commas > _MAX_COMMAS + self._settings.max_text_chars:
            self.refusal = RequestTooLargeError(f"the body has over {_MAX_COMMAS} values; send fewer messages or parts")

    def _too_slow(self) -> str:
        return (
            f"the body was not complete in {self._settings.client_send_deadline_s:g} s, {self._num_bytes} bytes had "
            "come; send faster or raise server.client_send_deadline_s"
        )


class BodyLimit:
    """ASGI middleware: a body over `max_body_mib` gets a 413, one that takes over `client_send_deadline_s` a 408.

    Also JSON of more values than any request needs gets a 413. Nothing over the limit is kept. The rest of a refused
    body is read and dropped for a short while, so that a client that is still sending gets to read the answer instead
    of a broken connection.
    """

    _MAX_DROPPED_BYTES = 512 * _MIB
    _DROP_DEADLINE_S = 5.0

    def __init__(self, app: ASGIApp, *, settings: ServerDeploy) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if _content_length(scope) > _max_bytes(self._settings):
            return await self._refuse(_too_large(self._settings), receive, send)
        body = _Body(receive, self._settings, is_form=_is_form(scope))

        async def guarded_send(message: Message) -> None:
            if body.refusal is None:  # else the answer is the one below, not what the app made of it
                await send(message)

        try:
            await self._app(scope, body.receive, guarded_send)
        except RequestError as error:
            if body.refusal is not error:
                raise
        if isinstance(body.refusal, RequestAbortedError):
            raise body.refusal
        if body.refusal is not None:
            await self._refuse(body.refusal, receive, send)

    async def _refuse(self, error: RequestError, receive: Receive, send: Send) -> None:
        """Sends the whole answer, then drops what still comes, then ends the response: uvicorn reads until then."""
        response = error_response(error)
        response.headers["connection"] = "close"
        await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
        await send({"type": "http.response.body", "body": bytes(response.body), "more_body": True})
        try:
            async with asyncio.timeout(self._DROP_DEADLINE_S):
                await self._drop_rest(receive)
        except TimeoutError:
            pass  # the client neither sends nor hangs up; closing the connection is all that is left
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _drop_rest(self, receive: Receive) -> None:
        num_dropped = 0
        while num_dropped < self._MAX_DROPPED_BYTES:
            message = await receive()
            if not message.get("more_body", False):
                return
            num_dropped += len(message["body"])


def _max_bytes(settings: ServerDeploy) -> int:
    return settings.max_body_mib * _MIB


def _too_large(settings: ServerDeploy) -> RequestTooLargeError:
    return RequestTooLargeError(
        f"the body is larger than the limit of {settings.max_body_mib} MiB; "
        "send less at once or raise server.max_body_mib"
    )


def _is_form(scope: Scope) -> bool:
    return any(name == b"content-type" and value.lower().startswith(b"multipart/") for name, value in scope["headers"])


def _content_length(scope: Scope) -> int:
    """The announced size of the body; 0 if there is none (or none that is a number: the server refuses that)."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
