"""An HTTP client that adds next to nothing to what it measures: one connection per request, bytes and clocks.

In: a request. Out: when its first payload came, and its whole body. Does not know: audio, goals, processes.
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from antiphon.errors import StageError

Body = dict[str, object]
_READ_BYTES = 1 << 18


@dataclass(frozen=True)
class Post:
    """One request. The first payload is what comes after `skip_bytes` of the body and contains `first_mark`."""

    path: str
    body: Body
    skip_bytes: int = 0
    first_mark: bytes = b""


@dataclass(frozen=True)
class Reply:
    """Times in seconds from before the connection was made."""

    first_s: float
    total_s: float
    body: bytes


class ChunkedBody:
    """Owns what of a chunked HTTP body has arrived; decodes as it comes. `ended`: the last chunk has come."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.ended = False
        self._raw = bytearray()

    def feed(self, data: bytes) -> None:
        """Take in more bytes behind the headers."""
        self._raw += data
        while (line_end := self._raw.find(b"\r\n")) >= 0:
            size = int(self._raw[:line_end], 16)
            end = line_end + 2 + size
            if len(self._raw) < end + 2:
                return
            self.ended = size == 0
            self.body += self._raw[line_end + 2 : end]
            del self._raw[: end + 2]


async def send(host: str, port: int, post: Post) -> Reply:
    """Send one request and read its answer to the end; StageError if it is not a chunked 200."""
    payload = msgspec.json.encode(post.body)
    head = f"POST {post.path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    request = f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload
    began_s = time.perf_counter()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request)
    headers = (await reader.readuntil(b"\r\n\r\n")).lower()
    if not headers.startswith(b"http/1.1 200") or b"transfer-encoding: chunked" not in headers:
        raise StageError(f"POST {post.path} was not answered with a stream: {(await reader.read())[:500]!r}")
    answer, first_s = ChunkedBody(), 0.0
    while data := await reader.read(_READ_BYTES):
        answer.feed(data)
        if not first_s and len(answer.body) > post.skip_bytes and post.first_mark in answer.body:
            first_s = time.perf_counter() - began_s
    total_s = time.perf_counter() - began_s
    writer.close()
    return Reply(first_s, total_s, bytes(answer.body))


async def send_all(host: str, port: int, posts: Iterable[Post]) -> list[Reply]:
    """All at once."""
    return await asyncio.gather(*(send(host, port, post) for post in posts))
