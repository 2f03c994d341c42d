"""The reference connector: peers in one process, found by address, arrays copied on put.

In: chunks to put. Out: chunks with read-only copies. Threads may each own one connector.
Does not know: sockets, shared memory, or what rows mean.
"""

import os
import time
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from typing import assert_never

from antiphon.connector.base import Chunk, ConnectorStatistics
from antiphon.connector.layout import Arrays, layout_of
from antiphon.connector.leases import Credit, ForgottenPeers, Lease, Leases, needs_lease
from antiphon.errors import ConfigError
from antiphon.messages.interstage import ChunkHeader


class _Mailbox:
    """Owns what has arrived at one connector, and the descriptor that says so."""

    def __init__(self) -> None:
        self._arrived: deque[Chunk | Credit] = deque()
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def deliver(self, message: Chunk | Credit) -> None:
        self._arrived.append(message)
        os.eventfd_write(self.fd, 1)

    def next(self) -> Chunk | Credit | None:
        if not self._arrived:
            self._lower()
        # Looked at again: what came after lowering has raised the descriptor anew.
        return self._arrived.popleft() if self._arrived else None

    def close(self) -> None:
        os.close(self.fd)

    def _lower(self) -> None:
        with suppress(BlockingIOError):  # it was not raised
            os.eventfd_read(self.fd)


_MAILBOXES: dict[str, _Mailbox] = {}
"""The process-wide registry: address -> mailbox of a connector between startup and close."""


class InprocConnector:
    """Owns its mailbox and the leases of what it put. A chunk put to an address nobody has is lost, as on a wire."""

    def __init__(self, address: str, *, arena_bytes: int, window_bytes: int = 0) -> None:
        self._address = address
        self._arena_bytes = arena_bytes
        self._leases = Leases(arena_bytes, window_bytes or arena_bytes)
        self._forgotten = ForgottenPeers()
        self._num_put = self._num_bytes_put = self._num_refused = 0
        self._num_received = self._num_bytes_received = 0

    @property
    def address(self) -> str:
        """Where peers put to."""
        return self._address

    @property
    def max_chunk_bytes(self) -> int:
        """A quarter of the credit, as with a real arena."""
        return self._arena_bytes // 4

    @property
    def window_bytes(self) -> int:
        """See Connector.window_bytes."""
        return self._leases.window_bytes

    def startup(self) -> None:
        """Register the address; ConfigError if another connector has it."""
        if self._address in _MAILBOXES:
            raise ConfigError([f"two inproc connectors have the address {self._address}; give each its own"])
        _MAILBOXES[self._address] = _Mailbox()

    def put(self, peer: str, header: ChunkHeader, rows: Collection[Arrays], whole: Arrays) -> bool:
        """See Connector.put."""
        layout = layout_of(header.form.encoded)
        places = layout.check_size(header, self.max_chunk_bytes)
        if peer in self._forgotten:
            return True
        request_id, size_bytes = header.form.request_id, places.size_bytes
        is_leased = needs_lease(header, size_bytes)
        if is_leased and not self._leases.fits(request_id, size_bytes):
            self._num_refused += 1
            return False
        copied = bytearray(size_bytes)
        layout.write(header, rows, whole, copied, 0)
        lease = 0
        if is_leased:
            granted = Lease(peer, request_id, size_bytes, None, header.form.edge, time.monotonic())
            lease = self._leases.grant(granted)
        self._num_put += 1
        self._num_bytes_put += places.payload_bytes
        _deliver(peer, Chunk(header, layout.read(header, bytes(copied), 0), lease, self._address))
        return True

    def get(self) -> Chunk | None:
        """See Connector.get."""
        while (message := _MAILBOXES[self._address].next()) is not None:
            match message:
                case Credit():
                    self._leases.take_in(message)
                case Chunk():
                    self._num_received += 1
                    self._num_bytes_received += sum(array.nbytes for array in message.arrays.values())
                    return message
                case _:
                    assert_never(message)
        return None

    def release(self, chunk: Chunk) -> None:
        """Give the credit to the producer at once."""
        if chunk.lease and chunk.reply_address not in self._forgotten:
            _deliver(chunk.reply_address, Credit(self._address, (chunk.lease,)))

    def flush(self) -> None:
        """Nothing waits: see `release`."""

    def num_held(self, request_id: str) -> int:
        """See Connector.num_held."""
        return self._leases.num_held(request_id)

    def forget_peer(self, peer: str) -> None:
        """See Connector.forget_peer."""
        self._forgotten.add(peer)
        self._leases.reclaim(peer)

    def fileno(self) -> int:
        """An eventfd."""
        return _MAILBOXES[self._address].fd

    def statistics(self) -> ConnectorStatistics:
        """See ConnectorStatistics."""
        return ConnectorStatistics(
            num_chunks_put=self._num_put,
            num_bytes_put=self._num_bytes_put,
            num_chunks_received=self._num_received,
            num_bytes_received=self._num_bytes_received,
            num_chunks_failed=0,
            num_refused=self._num_refused,
            num_leases=len(self._leases),
            arena_bytes=self._arena_bytes,
            arena_used_bytes=self._leases.used_bytes,
            arena_high_water_bytes=self._leases.high_water_bytes,
            oldest_unreleased_s=self._leases.oldest_s(time.monotonic()),
        )

    def close(self) -> None:
        """Leave the registry; what has not been received is lost."""
        mailbox = _MAILBOXES.pop(self._address, None)
        if mailbox is not None:
            mailbox.close()


def _deliver(peer: str, message: Chunk | Credit) -> None:
    mailbox = _MAILBOXES.get(peer)
    if mailbox is not None:
        mailbox.deliver(message)
