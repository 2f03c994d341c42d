"""Responses whose body is made while it is sent, and work that ends when its client leaves.

In: a generator of body bytes. Out: ASGI messages; the headers go out with the first bytes.
Does not know: what the bytes mean, who makes them.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from antiphon.errors import RequestAbortedError, StageError

_T = TypeVar("_T")


async def run_until_disconnect(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`. If the client hangs up first, `work` is cancelled at once: RequestAbortedError.

    The request's body must have been read: the only message left on `receive` is the disconnect.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RequestAbortedError("the client has hung up")
        return await task
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class StreamedResponse(Response):
    """Owns one generator of body bytes.

    What the generator raises before its first bytes is raised before any header is sent, so it can still become an
    error response. It is closed on every way out, and at once when the client hangs up, also while it waits.
    """

    def __init__(
        self, pieces: AsyncGenerator[bytes, None], *, media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self._pieces = pieces
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self.init_headers(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._pieces):
            await run_until_disconnect(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        first = await anext(self._pieces, b"")
        if not first:
            raise StageError("the stages ended this request without any output; see their logs")
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for piece in self._pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError as error:
            raise RequestAbortedError("the client has hung up") from error
