"""Framing: messages come out whole and in order however the stream was cut; what is none of them is refused."""

import struct

import pytest

from antiphon.transport.framing import FrameReader, NoMessageError, packed

MESSAGES: list[list[bytes]] = [[b"one"], [b""], [b"head", b"x" * 300], [b"a", b"", b"c"], [b"last"]]
STREAM = b"".join(map(packed, MESSAGES))


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 64, len(STREAM)])
def test_messages_are_whole_however_the_stream_is_cut(piece_bytes: int) -> None:
    reader, got = FrameReader(-1), list[list[bytes]]()
    for start in range(0, len(STREAM), piece_bytes):
        reader.feed(STREAM[start : start + piece_bytes], got)
    assert got == MESSAGES


def test_num_wanted_is_what_the_message_that_has_begun_still_lacks() -> None:
    reader, got = FrameReader(-1), list[list[bytes]]()
    message = packed([b"x" * 100_000])
    reader.feed(message[:60_000], got)
    assert (got, reader.num_wanted) == ([], len(message) - 60_000)
    reader.feed(message[60_000:], got)
    assert got == [[b"x" * 100_000]] and reader.num_wanted > 0


def test_a_message_that_is_too_large_is_refused_by_its_head() -> None:
    FrameReader(10).feed(packed([b"12345", b"67890"]), [])
    with pytest.raises(NoMessageError, match="of 11 bytes, where 10 are the most"):
        FrameReader(10).feed(packed([b"123456", b"67890"])[:12], [])


@pytest.mark.parametrize("garbage", [bytes(8), b"GET / HTTP/1.1\r\n"])
def test_what_is_no_message_is_refused(garbage: bytes) -> None:
    with pytest.raises(NoMessageError, match="frames, where there are 1 to 8"):
        FrameReader(-1).feed(garbage, [])


@pytest.mark.parametrize("lengths", [(2, 2), (4, 3)])
def test_frames_that_are_not_as_long_together_as_their_message_are_refused(lengths: tuple[int, int]) -> None:
    message = struct.pack("<4I", 2, 6, *lengths) + b"abcdefghij"
    with pytest.raises(NoMessageError, match="bytes from where it ends"):
        FrameReader(-1).feed(message, [])
