"""Messages on a byte stream: each is a head (how many frames, how many bytes in all), then the frames.

In: frames; or bytes as they arrive, cut anywhere. Out: bytes; or lists of frames. Does not know: sockets.
If there are several frames, their lengths are between the head and the frames.
"""

import struct
from collections.abc import Sequence

from antiphon.errors import AntiphonError

Frame = bytes | memoryview
_MAX_FRAMES = 8
_HEAD = struct.Struct("<II")
_HEAD_BYTES = _HEAD.size
_LENGTHS = [struct.Struct(f"<{count}I") for count in range(_MAX_FRAMES + 1)]


class NoMessageError(AntiphonError):
    """What has arrived is no message, or one that is larger than allowed; nothing after it can be read."""


def packed(frames: Sequence[Frame]) -> bytes:
    """A message of at most 8 frames, as it travels."""
    if len(frames) == 1:
        return b"".join((_HEAD.pack(1, len(frames[0])), frames[0]))
    lengths = tuple(map(len, frames))
    return b"".join((_HEAD.pack(len(frames), sum(lengths)), _LENGTHS[len(frames)].pack(*lengths), *frames))


class FrameReader:
    """Owns what has arrived on one connection and is no whole message yet. max_message_bytes: -1 = any size."""

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        self._pieces: list[bytes] = []
        self.num_wanted = 0
        """More bytes without which no message will be whole."""

    def feed(self, data: bytes, into: list[list[bytes]]) -> None:
        """Append the messages that are whole with `data`, all that has arrived since the last call."""
        if self._pieces:
            self._pieces.append(data)
            if len(data) < self.num_wanted:
                self.num_wanted -= len(data)
                return
            data = b"".join(self._pieces)
        rest = self._split(data, into)
        self._pieces = [data[rest:]] if rest < len(data) else []

    def _split(self, data: bytes, into: list[list[bytes]]) -> int:
        """Append the whole messages; gives where the first begins that is not whole, and sets num_wanted."""
        start, end = 0, len(data)
        while start + _HEAD_BYTES <= end:
            count, num_bytes = _HEAD.unpack_from(data, start)
            if not 0 < count <= _MAX_FRAMES or num_bytes > self._max_message_bytes >= 0:
                raise self._refusal(count, num_bytes)
            begin = start + _HEAD_BYTES + (_LENGTHS[count].size if count > 1 else 0)
            stop: int = begin + num_bytes
            if stop > end:
                self.num_wanted = stop - end
                return start
            into.append([data[begin:stop]] if count == 1 else _frames(data, begin, stop, count))
            start = stop
        self.num_wanted = start + _HEAD_BYTES - end
        return start

    def _refusal(self, count: int, num_bytes: int) -> NoMessageError:
        if not 0 < count <= _MAX_FRAMES:
            return NoMessageError(f"a message of {count} frames, where there are 1 to {_MAX_FRAMES}")
        return NoMessageError(f"a message of {num_bytes} bytes, where {self._max_message_bytes} are the most")


def _frames(data: bytes, begin: int, stop: int, count: int) -> list[bytes]:
    """The frames that lie in data[begin:stop], behind their lengths."""
    frames = []
    for length in _LENGTHS[count].unpack_from(data, begin - _LENGTHS[count].size):
        frames.append(data[begin : begin + length])
        begin += length
    if begin != stop:
        raise NoMessageError(f"a message whose frames end {begin - stop:+d} bytes from where it ends")
    return frames
