"""The connector between processes of one host: payloads in a shared arena, or inline if small.

In: chunks to put, frames from peers. Out: chunks whose arrays are views of the producer's memory.
Does not know: pipelines, scheduling, or what rows mean. Peers are not trusted to describe chunks rightly.
"""

import logging
import time
from collections import deque
from collections.abc import Collection, Iterable
from contextlib import ExitStack

import msgspec

from antiphon.connector.arena import Arena
from antiphon.connector.base import Chunk, ConnectorStatistics
from antiphon.connector.layout import Arrays, chunk_error, form_of, layout_of
from antiphon.connector.leases import INLINE_BYTES, Credit, ForgottenPeers, Lease, Leases, needs_lease
from antiphon.connector.memfd import PREFIX_BYTES, OwnArena, PeerArenas
from antiphon.connector.parcel import MAX_LEASES, MAX_PARCEL_BYTES, Outgoing, Parcel, SentChunk
from antiphon.errors import AntiphonError, ReplicaDiedError, StageError
from antiphon.messages.error_info import to_info
from antiphon.messages.interstage import FAILED, ChunkFlag, ChunkHeader
from antiphon.transport.channel import FrameInlet, NoDescriptorError, Outlet

_MAX_ADDRESS_CHARS = 113  # ipc:// and the longest socket path
_log = logging.getLogger(__name__)


class ShmConnector:
    """Owns one memfd arena, the leases on it, one inlet, and a mapping of each producer's arena."""

    def __init__(self, address: str, *, arena_bytes: int, window_bytes: int = 0) -> None:
        self._address = address
        self._arena_bytes = arena_bytes
        self._max_chunk_bytes = arena_bytes // 4
        self._memory = OwnArena(arena_bytes)
        self._arena = Arena(arena_bytes)
        self._leases = Leases(arena_bytes, window_bytes or arena_bytes)
        self._forgotten = ForgottenPeers()
        self._peer_arenas = PeerArenas()
        self._inlet = FrameInlet(address, max_message_bytes=MAX_PARCEL_BYTES)
        self._outlet = Outlet(max_queued=0)  # credit bounds what waits for a peer
        self._decoder = msgspec.msgpack.Decoder(Parcel)
        self._arrived: deque[tuple[Parcel, SentChunk, bytes]] = deque()
        self._outgoing: dict[str, Outgoing] = {}
        """Of peers that have been met and not forgotten."""
        self._untried: set[str] = set()
        """Those of them that were only told of failures, which may wait for a descriptor."""
        self._waiting: dict[str, None] = {}
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
        return self._max_chunk_bytes

    @property
    def window_bytes(self) -> int:
        """See Connector.window_bytes."""
        return self._leases.window_bytes

    def startup(self) -> None:
        """Create the arena and bind the socket; an OSError leaves neither."""
        with ExitStack() as opened:
            self._memory.startup()
            opened.callback(self._memory.close)
            self._inlet.startup()
            opened.pop_all()

    def put(self, peer: str, header: ChunkHeader, rows: Collection[Arrays], whole: Arrays) -> bool:
        """See Connector.put."""
        form, num_rows = header.form, header.rows
        layout = layout_of(form.encoded)
        places = layout.check_size(header, self._max_chunk_bytes)
        outgoing = None if peer in self._untried else self._outgoing.get(peer)
        outgoing = outgoing or self._meet_consumer(peer, header)
        if outgoing is None:
            return True
        size_bytes = places.size_bytes
        is_inline, is_leased = size_bytes <= INLINE_BYTES, needs_lease(header, size_bytes)
        has_credit = not is_leased or self._leases.fits(form.request_id, size_bytes)
        offset = self._room_for(outgoing, size_bytes) if has_credit else None
        if offset is None:
            self._num_refused += 1
            return False
        try:
            layout.write(header, rows, whole, outgoing.inline if is_inline else self._memory.mapping, offset)
        except StageError:
            self._take_back_room(outgoing, size_bytes, offset)
            raise
        lease = 0
        if is_leased:
            place = None if is_inline else offset - PREFIX_BYTES
            lease = self._leases.grant(Lease(peer, form.request_id, size_bytes, place, form.edge, time.monotonic()))
        sent = SentChunk(
            form.encoded, header.seq, header.first_row, num_rows, header.flags, header.error, lease, is_inline, offset
        )
        outgoing.chunks.append(sent)
        self._waiting[peer] = None
        if outgoing.is_full:
            self._send(peer)
        self._num_put += 1
        self._num_bytes_put += places.payload_bytes
        return True

    def get(self) -> Chunk | None:
        """See Connector.get. A chunk that cannot be opened comes as an ERROR chunk of the same seq."""
        while True:
            while not self._arrived:
                batch = self._inlet.receive()
                if not batch:
                    return None
                for frames in batch:
                    self._take_in(frames)
            chunk = self._open(*self._arrived.popleft())
            if chunk is not None:
                return chunk

    def release(self, chunk: Chunk) -> None:
        """Queue the credit; it leaves with `flush`, or when there is much of it."""
        outgoing = self._outgoing.get(chunk.reply_address)
        if chunk.lease and outgoing is not None:  # None: its producer was forgotten
            outgoing.leases.append(chunk.lease)
            self._waiting[chunk.reply_address] = None
            if len(outgoing.leases) >= MAX_LEASES:
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
        self._untried.discard(peer)
        self._waiting.pop(peer, None)

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
            num_unreached=self._outlet.counters.num_unreached,
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

    def _meet(self, peer: str) -> Outgoing | None:
        """What waits for `peer`; None if it was forgotten."""
        return None if peer in self._forgotten else self._outgoing.setdefault(peer, Outgoing())

    def _meet_consumer(self, peer: str, header: ChunkHeader) -> Outgoing | None:
        """As `_meet`, when it can be reached; StageError if not. That a request has failed waits until it can be."""
        if peer in self._forgotten:
            return None
        if header.flags & FAILED:
            self._untried.add(peer)
        else:
            try:
                self._outlet.reach(peer)
            except NoDescriptorError as error:
                raise chunk_error(header, error.message) from error
            self._untried.discard(peer)
        return self._meet(peer)

    def _room_for(self, outgoing: Outgoing, size_bytes: int) -> int | None:
        """Where a payload goes, in the parcel or in the arena's memory; None if the arena has no place for it."""
        if size_bytes <= INLINE_BYTES:
            return outgoing.room_for(size_bytes)
        place = self._arena.allocate(size_bytes)
        return None if place is None else PREFIX_BYTES + place

    def _take_back_room(self, outgoing: Outgoing, size_bytes: int, offset: int) -> None:
        """Nothing was put there."""
        if size_bytes <= INLINE_BYTES:
            del outgoing.inline[offset:]
        else:
            self._arena.free(offset - PREFIX_BYTES)

    def _send(self, peer: str) -> None:
        self._waiting.pop(peer, None)
        self._outlet.send_frames(peer, self._outgoing[peer].take(self._address, self._memory.identity))

    def _take_in(self, frames: list[bytes]) -> None:
        try:
            parcel = self._decoder.decode(frames[0])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._drop(f"a message that is no parcel: {error}")
            return
        if parcel.leases:
            self._free(self._leases.take_in(Credit(parcel.sender, parcel.leases)))
        inline = frames[1] if len(frames) > 1 else b""
        for sent in parcel.chunks:
            self._arrived.append((parcel, sent, inline))

    def _open(self, parcel: Parcel, sent: SentChunk, inline: bytes) -> Chunk | None:
        """The chunk; an ERROR chunk if its payload cannot be read; None if it is of nobody."""
        try:
            layout = layout_of(sent.form)
            header = ChunkHeader(layout.form, sent.seq, sent.first_row, sent.rows, sent.flags, sent.error)
            if sent.lease and parcel.sender not in self._outgoing:
                self._meet_producer(parcel.sender, header)
            source = inline if sent.is_inline else self._peer_arenas.open(parcel.sender, parcel.arena)
            chunk = Chunk(header, layout.read(header, source, sent.offset), sent.lease, parcel.sender)
        except AntiphonError as error:
            return self._failed(parcel, sent, error)
        self._num_received += 1
        self._num_bytes_received += layout.places(sent.rows).payload_bytes
        return chunk

    def _failed(self, parcel: Parcel, sent: SentChunk, error: AntiphonError) -> Chunk | None:
        try:
            form = msgspec.structs.replace(form_of(sent.form), tensors=())
        except StageError as unreadable:
            self._drop(unreadable.message)
            return None
        self._num_failed += 1
        header = ChunkHeader(form, sent.seq, sent.first_row, 0, int(ChunkFlag.ERROR), to_info(error))
        return Chunk(header, {}, sent.lease, parcel.sender)

    def _drop(self, what: str) -> None:
        self._num_failed += 1
        _log.warning("%s dropped a chunk or a message: %s", self._address, what)

    def _meet_producer(self, peer: str, header: ChunkHeader) -> None:
        """Check that the credit of a chunk can go back, and be ready for it."""
        if not peer.startswith("ipc://") or len(peer) > _MAX_ADDRESS_CHARS:
            raise chunk_error(header, f"its credit cannot go back to {peer[:_MAX_ADDRESS_CHARS]!r}")
        if self._meet(peer) is None:
            raise ReplicaDiedError(f"{header.form.producer} ended before its chunk was read")

    def _free(self, ended: Iterable[Lease]) -> None:
        for lease in ended:
            if lease.offset is not None:
                self._arena.free(lease.offset)
