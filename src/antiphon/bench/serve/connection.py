"""One HTTP/1.1 request over a connection of its own, its answer read as it comes.

In: bytes to send, an Answer to fill. Out: when it ended and why. Does not know: when requests are due, statistics.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

import httptools

from antiphon.bench.serve.answer import Answer

_MAX_ERROR_BYTES = 500


class Body(Protocol):
    """What reads an answer's body."""

    def feed(self, data: bytes, now_s: float) -> None:
        """Some of it."""

    def close(self) -> None:
        """That was all."""


class AnswerProtocol(asyncio.Protocol):
    """Owns one connection. `ended` is done when the answer is over, however that came; then `end_s` is set.
    `answer_id`: what the server calls the request.

    The time of a piece is taken before it is looked at.
    """

    def __init__(self, request: bytes, answer: Answer, body: Body, clock: Callable[[], float]) -> None:
        self._request = request
        self._answer = answer
        self._body = body
        self._clock = clock
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._now_s = 0.0
        self._error_body = b""
        self.answer_id = ""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.end_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Some of the answer."""
        self._now_s = self._clock()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, ValueError) as error:
            cause = error.__context__ or error  # what on_body raised
            self._end(f"the answer cannot be read: {cause}")

    def connection_lost(self, exc: Exception | None) -> None:
        """The server has hung up, or we have."""
        self._end(f"the connection broke: {exc or 'the server hung up in mid-answer'}")

    def on_header(self, name: bytes, value: bytes) -> None:
        """The parser's: the server's name of the request."""
        if name.lower() == b"x-request-id":
            self.answer_id = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        """The parser's: more of the body, without the chunks' heads."""
        if self._parser.get_status_code() == 200:
            self._body.feed(data, self._now_s)
        elif len(self._error_body) < _MAX_ERROR_BYTES:
            self._error_body += data

    def on_message_complete(self) -> None:
        """The parser's: the body is whole."""
        status = self._parser.get_status_code()
        if status != 200:
            self._end(f"HTTP {status}: {self._error_body[:_MAX_ERROR_BYTES].decode(errors='replace')}")
            return
        self._body.close()
        self._end("" if self._answer.is_complete else "the answer ended without [DONE]")

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: str) -> None:
        if self.ended.done():
            return
        self.end_s = self._clock()
        self._answer.error = self._answer.error or error
        self.ended.set_result(None)
        self.close()
