"""What one shm connector sends another: parcels of chunks and of credit.

In: chunks and leases, one by one. Out: the frames of one message. Does not know: sockets, arenas, credit's limits.
"""

import msgspec

from antiphon.connector.memfd import ArenaIdentity
from antiphon.messages.error_info import ErrorInfo
from antiphon.transport.channel import Frame

_MAX_CHUNKS = 256
MAX_LEASES = 1024
"""Leases of which a message is made without waiting for more."""
_MAX_INLINE_BYTES = 256 * 1024
MAX_PARCEL_BYTES = 8 << 20
"""A larger message is no parcel: this holds 256 chunks with the longest error (8 KiB) and a form of 20 KiB each."""


class SentChunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A ChunkHeader, its form encoded, and where the payload lies.

    lease: 0 if there is no payload. offset: in the sender's arena or, if is_inline, in the parcel's second frame.
    """

    form: bytes
    seq: int
    first_row: int
    rows: int
    flags: int
    error: ErrorInfo | None = None
    lease: int = 0
    is_inline: bool = True
    offset: int = 0


class Parcel(msgspec.Struct, frozen=True, array_like=True):
    """All that the connector `sender` had for another: one message costs as much as many chunks.

    leases: of chunks that `sender` has released.
    """

    sender: str
    arena: ArenaIdentity
    chunks: list[SentChunk] = []
    leases: list[int] = []


class Outgoing:
    """Owns what waits for one peer. inline: the payloads of its chunks that lie in no arena, each aligned."""

    def __init__(self) -> None:
        self.chunks: list[SentChunk] = []
        self.inline = bytearray()
        self.leases: list[int] = []

    def room_for(self, num_bytes: int) -> int:
        """The offset of so many bytes at the end of `inline`."""
        offset = len(self.inline)
        self.inline += bytes(num_bytes)
        return offset

    @property
    def is_full(self) -> bool:
        """True if there are chunks enough for a message."""
        return len(self.chunks) >= _MAX_CHUNKS or len(self.inline) >= _MAX_INLINE_BYTES

    def take(self, sender: str, arena: ArenaIdentity) -> list[Frame]:
        """The frames of a parcel of it all; nothing waits then."""
        frames: list[Frame] = [msgspec.msgpack.encode(Parcel(sender, arena, self.chunks, self.leases))]
        if self.inline:
            frames.append(memoryview(self.inline))
        self.chunks, self.inline, self.leases = [], bytearray(), []
        return frames
