import asyncio

import pytest

from antiphon.bench.load import Post, Reply, send
from antiphon.errors import StageError

HEADERS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def reply_to(post: Post, *pieces: bytes) -> Reply:
    """What `send` makes of a server that writes `pieces`, 30 ms apart, and hangs up."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.03)
        writer.close()

    async def run() -> Reply:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            return await send("127.0.0.1", server.sockets[0].getsockname()[1], post)

    return asyncio.run(run())


def test_chunks_are_joined_wherever_the_network_cuts_them() -> None:
    reply = reply_to(Post("/", {}), HEADERS + b"3\r\nab", b"c\r\n2", b"\r\nde\r\n0\r\n\r\n")
    assert reply.body == b"abcde"


def test_a_header_of_the_audio_is_not_the_first_audio() -> None:
    pieces = HEADERS + b"2\r\nHH\r\n", b"1\r\nH\r\n", b"1\r\na\r\n", b"0\r\n\r\n"
    with_header = reply_to(Post("/", {}, skip_bytes=3), *pieces)
    without = reply_to(Post("/", {}), *pieces)
    assert without.total_s - without.first_s > 0.06, "its first audio is in the first piece"
    assert 0.06 <= with_header.first_s < with_header.total_s and with_header.body == b"HHHa"


def test_the_first_payload_is_the_one_with_the_mark() -> None:
    reply = reply_to(Post("/", {}, first_mark=b"text"), HEADERS + b"4\r\nrole\r\n", b"4\r\ntext\r\n", b"0\r\n\r\n")
    assert reply.first_s >= 0.03


def test_an_error_answer_is_raised_with_its_body() -> None:
    with pytest.raises(StageError, match="no such voice"):
        reply_to(Post("/speech", {}), b"HTTP/1.1 400 Bad Request\r\nContent-Length: 13\r\n\r\nno such voice")
