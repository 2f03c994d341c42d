"""The connector between processes of one host: payloads in a shared arena, or inline if small.

In: chunks to put, frames from peers. Out: chunks whose arrays are views of the producer's memory.
Does not know: pipelines, scheduling, or what rows mean. Peers are not trusted to describe chunks rightly.
"""

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from antiphon.connector.arena import Arena
from antiphon.connector.base import Chunk, ConnectorStatistics
from antiphon.connector.layout import Layout, chunk_error
from antiphon.connector.leases import Credit, ForgottenPeers, Lease, Leases
from antiphon.connector.memfd import PREFIX_BYTES, ArenaIdentity, OwnArena, PeerArenas
from antiphon.errors import AntiphonError, ReplicaDiedError
from antiphon.messages.error_info import to_info
from antiphon.messages.interstage import ChunkFlag, ChunkHeader
from antiphon.transport.channel import Frame, FrameInlet, Outlet

INLINE_BYTES = 16 * 1024
"""Up to this size a payload rides in the message; a copy there is cheaper than the arena's bookkeeping."""
_MAX_CHUNKS_PER_PARCEL = 256
_MAX_LEASES_PER_PARCEL = 1024
_MAX_INLINE_PER_PARCEL = 256 * 1024
_MAX_MESSAGE_BYTES = 1024 * 1024
_MAX_ADDRESS_CHARS = 113  # ipc:// and the longest socket path
_log = logging.getLogger(__name__)


class SentChunk(msgspec.Struct, frozen=True, array_like=True):
    """producer -> consumer: one chunk. Its payload lies at `offset` of `arena`; None: of the second frame."""

    header: ChunkHeader
    reply_address: str
    lease: int = 0
    arena: ArenaIdentity | None = None
    offset: int = 0


class Parcel(msgspec.Struct, frozen=True, array_like=True):
    """All that one connector had for another when it sent: one message costs as much as many chunks."""

    chunks: list[SentChunk] = []
    credit: Credit | None = None


class _Outgoing:
    """Owns what waits for one peer. inline: the payloads of its chunks that lie in no arena, each aligned."""

    def __init__(self) -> None:
        self.chunks: list[SentChunk] = []
        self.inline = bytearray()
        self.leases: list[int] = []

    def take(self, sender: str) -> list[Frame]:
        """The frames of a parcel of it all."""
        credit = Credit(sender, tuple(self.leases)) if self.leases else None
        frames: list[Frame] = [msgspec.msgpack.encode(Parcel(self.chunks, credit)), memoryview(self.inline)]
        self.chunks, self.inline, self.leases = [], bytearray(), []
        return frames


class ShmConnector:
    """Owns one memfd arena, the leases on it, one inlet, and a mapping of each producer's arena."""

    def __init__(self, address: str, *, arena_bytes: int, window_bytes: int = 0) -> None:
        self._address = address
        self._arena_bytes = arena_bytes
        self._memory = OwnArena(arena_bytes)
        self._arena = Arena(arena_bytes)
        self._leases = Leases(arena_bytes, window_bytes or arena_bytes)
        self._forgotten = ForgottenPeers()
        self._peer_arenas = PeerArenas()
        self._inlet = FrameInlet(address, max_message_bytes=_MAX_MESSAGE_BYTES)
        self._outlet = Outlet(max_queued=0)  # credit bounds what waits for a peer
        self._decoder = msgspec.msgpack.Decoder(Parcel)
        self._arrived: deque[tuple[SentChunk, bytes]] = deque()
        self._outgoing: dict[str, _Outgoing] = {}
        self._waiting: set[str] = set()
        """Peers that something waits for."""
        self._num_put = self._num_bytes_put = self._num_refused = 0
        self._num_received = self._num_bytes_received = self._num_failed = 0

    @property
    def address(self) -> str:
        """Where peers put to."""
        return self._address

    @property
    def max_chunk_bytes(self) -> int:
        """A quarter of the arena, so that a full-size chunk still fits beside others that are held."""
        return self._arena_bytes // 4

    @property
    def window_bytes(self) -> int:
        """See Connector.window_bytes."""
        return self._leases.window_bytes

    def startup(self) -> None:
        """Create the arena and bind the socket."""
        self._memory.startup()
        self._inlet.startup()

    def put(self, peer: str, header: ChunkHeader, buffers: Sequence[np.ndarray]) -> bool:
        """See Connector.put. StageError if `buffers` are not what `header` declares or are too large."""
        layout = Layout.of(header)
        layout.check(buffers, self.max_chunk_bytes)
        if peer in self._forgotten:
            return True
        if layout.size_bytes == 0:
            self._queue(peer, SentChunk(header, self._address))
        elif not self._put_payload(peer, layout, buffers):
            self._num_refused += 1
            return False
        self._num_put += 1
        self._num_bytes_put += layout.payload_bytes
        return True

    def get(self) -> Chunk | None:
        """See Connector.get. A chunk that cannot be opened comes as an ERROR chunk of the same seq."""
        while not self._arrived:
            batch = self._inlet.receive()
            if not batch:
                return None
            for frames in batch:
                self._take_in(frames)
        sent, inline = self._arrived.popleft()
        return self._open(sent, inline)

    def release(self, chunk: Chunk) -> None:
        """Queue the credit; it leaves with `flush`."""
        outgoing = self._outgoing.get(chunk.reply_address)
        if chunk.lease == 0 or outgoing is None:  # nothing leased, or its producer was forgotten
            return
        outgoing.leases.append(chunk.lease)
        self._waiting.add(chunk.reply_address)
        if len(outgoing.leases) >= _MAX_LEASES_PER_PARCEL:
            self._send(chunk.reply_address)

    def flush(self) -> None:
        """Send what waits, one parcel per peer."""
        for peer in list(self._waiting):
            self._send(peer)

    def num_held(self, request_id: str) -> int:
        """See Connector.num_held."""
        return self._leases.num_held(request_id)

    def forget_peer(self, peer: str) -> None:
        """See Connector.forget_peer."""
        self._forgotten.add(peer)
        self._free(self._leases.reclaim(peer))
        self._outlet.forget(peer)
        self._peer_arenas.forget(peer)
        self._outgoing.pop(peer, None)
        self._waiting.discard(peer)

    def fileno(self) -> int:
        """See FrameInlet.fileno."""
        return self._inlet.fileno()

    def statistics(self) -> ConnectorStatistics:
        """See ConnectorStatistics; inline payloads count as used arena."""
        return ConnectorStatistics(
            num_chunks_put=self._num_put,
            num_bytes_put=self._num_bytes_put,
            num_chunks_received=self._num_received,
            num_bytes_received=self._num_bytes_received,
            num_chunks_failed=self._num_failed,
            num_refused=self._num_refused,
            num_leases=len(self._leases),
            arena_bytes=self._arena_bytes,
            arena_used_bytes=self._leases.used_bytes,
            arena_high_water_bytes=self._leases.high_water_bytes,
            oldest_unreleased_s=self._leases.oldest_s(time.monotonic()),
        )

    def close(self) -> None:
        """Send what waits, close the sockets and let go of all memory."""
        self.flush()
        self._outlet.close()
        self._inlet.close()
        self._arrived.clear()
        self._peer_arenas.close()
        self._memory.close()

    def _put_payload(self, peer: str, layout: Layout, buffers: Sequence[np.ndarray]) -> bool:
        header, size_bytes = layout.header, layout.size_bytes
        if not self._leases.fits(header.request_id, size_bytes):
            return False
        if size_bytes <= INLINE_BYTES:
            inline = self._outgoing_to(peer).inline
            offset = len(inline)
            inline.extend(bytes(size_bytes))
            layout.write(buffers, inline, offset)
            lease = self._leases.grant(_lease(peer, header, size_bytes, None))
            self._queue(peer, SentChunk(header, self._address, lease, None, offset))
            return True
        place = self._arena.allocate(size_bytes)
        if place is None:
            return False
        layout.write(buffers, self._memory.mapping, PREFIX_BYTES + place)
        lease = self._leases.grant(_lease(peer, header, size_bytes, place))
        self._queue(peer, SentChunk(header, self._address, lease, self._memory.identity, PREFIX_BYTES + place))
        return True

    def _outgoing_to(self, peer: str) -> _Outgoing:
        return self._outgoing.setdefault(peer, _Outgoing())

    def _queue(self, peer: str, sent: SentChunk) -> None:
        outgoing = self._outgoing_to(peer)
        outgoing.chunks.append(sent)
        self._waiting.add(peer)
        if len(outgoing.chunks) >= _MAX_CHUNKS_PER_PARCEL or len(outgoing.inline) >= _MAX_INLINE_PER_PARCEL:
            self._send(peer)

    def _send(self, peer: str) -> None:
        self._waiting.discard(peer)
        self._outlet.send_frames(peer, self._outgoing[peer].take(self._address))

    def _take_in(self, frames: list[bytes]) -> None:
        try:
            message = self._decoder.decode(frames[0])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._num_failed += 1
            _log.warning("%s dropped a message that is no parcel: %s", self._address, error)
            return
        if message.credit is not None:
            self._free(self._leases.take_in(message.credit))
        inline = frames[1] if len(frames) > 1 else b""
        self._arrived.extend((sent, inline) for sent in message.chunks)

    def _open(self, sent: SentChunk, inline: bytes) -> Chunk:
        lease = sent.lease
        try:
            if lease:
                self._check_address(sent)
                self._outgoing_to(sent.reply_address)
            layout = Layout.of(sent.header)
            source = inline if sent.arena is None else self._peer_arenas.open(sent.reply_address, sent.arena)
            chunk = Chunk(sent.header, layout.read(source, sent.offset), lease, sent.reply_address)
        except AntiphonError as error:
            self._num_failed += 1
            return Chunk(_failed(sent.header, error), {}, lease, sent.reply_address)
        self._num_received += 1
        self._num_bytes_received += layout.payload_bytes
        return chunk

    def _check_address(self, sent: SentChunk) -> None:
        """That the credit of a chunk can go back."""
        if not sent.reply_address.startswith("ipc://") or len(sent.reply_address) > _MAX_ADDRESS_CHARS:
            raise chunk_error(sent.header, f"its credit cannot go back to {sent.reply_address[:_MAX_ADDRESS_CHARS]!r}")
        if sent.reply_address in self._forgotten:
            raise ReplicaDiedError(f"{sent.header.producer} ended before its chunk was read")

    def _free(self, ended: Iterable[Lease]) -> None:
        for lease in ended:
            if lease.offset is not None:
                self._arena.free(lease.offset)


def _lease(peer: str, header: ChunkHeader, size_bytes: int, offset: int | None) -> Lease:
    return Lease(peer, header.request_id, size_bytes, offset, header.edge, time.monotonic())


def _failed(header: ChunkHeader, error: AntiphonError) -> ChunkHeader:
    return msgspec.structs.replace(header, rows=0, tensors=(), flags=int(ChunkFlag.ERROR), error=to_info(error))
