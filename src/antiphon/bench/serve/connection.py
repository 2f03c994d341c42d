"""One HTTP/1.1 request over a connection of its own, its answer read as it comes.

In: bytes to send, an Answer to fill. Out: when it ended and why. Does not know: when requests are due, statistics.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol, cast

import httptools

from antiphon.bench.serve.answer import Answer

_MAX_ERROR_BYTES = 500
_SMALL_BUFFER_BYTES = 8192


class Body(Protocol):
    """What reads an answer's body."""

    def feed(self, data: bytes, now_s: float) -> None:
        """Some of it."""

    def close(self) -> None:
        """That was all."""


class AnswerProtocol(asyncio.Protocol):
    """Owns one connection. `ended` is done when the answer is over, however that came; then `end_s` is set.
    `answer_id`: what the server calls the request. `bytes_per_s`: how fast it reads at most, 0 for no limit.

    The time of a piece is taken before it is looked at.
    """

    def __init__(
        self, request: bytes, answer: Answer, body: Body, clock: Callable[[], float], bytes_per_s: float = 0.0
    ) -> None:
        self._request = request
        self._bytes_per_s = bytes_per_s
        self._answer = answer
        self._body = body
        self._clock = clock
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._now_s = 0.0
        self._error_body = b""
        self.answer_id = ""
        self.num_bytes = 0
        self.has_left = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.end_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance
        if self._bytes_per_s:  # the server shall notice
            connection = self._transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER_BYTES)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Some of the answer."""
        self._now_s = self._clock()
        self.num_bytes += len(data)
        if self._bytes_per_s:
            self._rest(len(data) / self._bytes_per_s)
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

    def leave(self) -> None:
        """Hang up in the middle of the answer, if it is not over."""
        if not self.ended.done():
            self.has_left = True
            self._end("")

    def _rest(self, time_s: float) -> None:
        """Read nothing for so long."""
        assert self._transport is not None
        self._transport.pause_reading()
        asyncio.get_running_loop().call_later(time_s, self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

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
