"""The Connector protocol: how chunks move between replicas, and the credit that bounds them.

In: ChunkHeader and arrays. Out: Chunk with read-only arrays on the other side.
Does not know: pipelines, scheduling, or what rows mean.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from antiphon.connector.layout import Arrays
from antiphon.messages.interstage import ChunkHeader


class Chunk(msgspec.Struct, frozen=True):
    """One received chunk. `arrays` are read-only views, valid until `Connector.release(chunk)`."""

    header: ChunkHeader
    arrays: Arrays = {}
    lease: int = 0
    """The producer's lease id; 0 if the chunk holds nothing of the producer's."""
    reply_address: str = ""
    """Where the credit goes back to."""

    def owned(self) -> "Chunk":
        """The same chunk in memory of its own; this one may be released."""
        return Chunk(self.header, {key: array.copy() for key, array in self.arrays.items()})


@dataclass(frozen=True)
class ConnectorStatistics:
    """Counts from the start, except `arena_*`, `num_leases` and `oldest_unreleased_s`, which are of this moment.

    oldest_unreleased_s: edge -> age of its oldest chunk that its consumer has not released.
    """

    num_chunks_put: int
    num_bytes_put: int
    num_chunks_received: int
    num_bytes_received: int
    num_chunks_failed: int
    """Arrived but could not be opened: delivered as ERROR, or dropped if not even the request was readable."""
    num_refused: int
    num_leases: int
    arena_bytes: int
    arena_used_bytes: int
    arena_high_water_bytes: int
    num_unreached: int = 0
    """Connections to consumers that could not be opened for want of a descriptor."""
    oldest_unreleased_s: dict[str, float] = field(default_factory=dict)


class Connector(Protocol):
    """Moves chunks from this process to peers, and gives those that peers sent.

    Bounded by credit: bytes put and not yet released by their consumers never exceed the arena. Each request has a
    window of it that no other can take, so that consumers that stand still stop their own requests only.
    """

    @property
    def address(self) -> str:
        """Where peers put to."""

    @property
    def max_chunk_bytes(self) -> int:
        """The most payload bytes one chunk may have; producers split what is larger."""

    @property
    def window_bytes(self) -> int:
        """What one request may have put and not got back, whatever others have; more if the arena is half empty."""

    def startup(self) -> None:
        """Open sockets and memory."""

    def put(self, peer: str, header: ChunkHeader, rows: Collection[Arrays], whole: Arrays) -> bool:
        """Take one chunk for the connector at address `peer`; it leaves at the latest with `flush`.

        `rows`: pieces that follow one another, each key -> [n, ...] with equal n > 0; their first `header.rows` rows
        are taken. `whole`: key -> array. Both have the arrays that `header.form` says, and may be reused afterwards.
        StageError if they have not, or if the payload is over `max_chunk_bytes`: only that request fails.

        False if the credit does not suffice now: nothing was taken, try again after `get` has taken in credit.
        A request's last chunk with no payload, or a small one, takes no credit (`needs_lease`) and is never refused.
        """

    def get(self) -> Chunk | None:
        """The next chunk that has arrived, or None; never waits. Takes in returned credit on the way.

        A chunk whose payload cannot be read comes with flags=ERROR, an error and no arrays, under its own seq.
        """

    def release(self, chunk: Chunk) -> None:
        """The consumer is done with `chunk.arrays`; its credit goes back to the producer, at the latest with `flush`.

        Every chunk is released once, ERROR chunks too; for a chunk without a lease it does nothing.
        """

    def flush(self) -> None:
        """Send the chunks and the credit that wait. The host calls it before it waits for anything."""

    def num_held(self, request_id: str) -> int:
        """Leases of this producer's chunks of `request_id` that consumers have not released."""

    def forget_peer(self, peer: str) -> None:
        """`peer` is gone (its process has ended): reclaim the leases it held and drop what waits for it.

        Views of its chunks stay readable; releasing them afterwards does nothing. A process that comes in its place
        has another address: what is put to this one from now on is lost, as on a wire, and takes no credit.
        """

    def fileno(self) -> int:
        """Readable when chunks or credit have arrived; call `get` until None then, and about once a second."""

    def statistics(self) -> ConnectorStatistics:
        """Counts for the monitor."""

    def close(self) -> None:
        """Give everything back. Call it when `num_leases` is 0: a chunk not yet read by its consumer may be lost."""
