"""Messages on a byte stream: each is a head (how many frames, how long each is), then the frames.

In: frames; or bytes as they arrive, cut anywhere. Out: bytes; or lists of frames. Does not know: sockets.
"""

import struct
from collections.abc import Sequence

from antiphon.errors import AntiphonError

Frame = bytes | memoryview
_MAX_FRAMES = 8
_HEADS: list[struct.Struct] = [struct.Struct(f"<{1 + count}I") for count in range(_MAX_FRAMES + 1)]
_COUNT = _HEADS[0]


class NoMessageError(AntiphonError):
    """What has arrived is no message, or one that is larger than allowed; nothing after it can be read."""


def packed(frames: Sequence[Frame]) -> bytes:
    """A message of at most 8 frames, as it travels."""
    return b"".join((_HEADS[len(frames)].pack(len(frames), *map(len, frames)), *frames))


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
        start, self.num_wanted = 0, 0
        while not self.num_wanted:
            start = self._next(data, start, into)
        self._pieces = [data[start:]] if start < len(data) else []

    def _next(self, data: bytes, start: int, into: list[list[bytes]]) -> int:
        """Append the message that begins at `start` and give its end; or set num_wanted and give `start`."""
        if self._is_short(data, start + _COUNT.size):
            return start
        count: int = _COUNT.unpack_from(data, start)[0]
        if not 0 < count <= _MAX_FRAMES:
            raise NoMessageError(f"a message of {count} frames, where there are 1 to {_MAX_FRAMES}")
        head = _HEADS[count]
        end: int = start + head.size
        if self._is_short(data, end):
            return start
        lengths: tuple[int, ...] = head.unpack_from(data, start)[1:]
        num_bytes = sum(lengths)
        if num_bytes > self._max_message_bytes >= 0:
            raise NoMessageError(f"a message of {num_bytes} bytes, where {self._max_message_bytes} are the most")
        if self._is_short(data, end + num_bytes):
            return start
        frames = []
        for length in lengths:
            frames.append(data[end : end + length])
            end += length
        into.append(frames)
        return end

    def _is_short(self, data: bytes, wanted: int) -> bool:
        self.num_wanted = max(0, wanted - len(data))
        return wanted > len(data)
