"""A producer's credit: what it has put and its consumers have not released.

In: grants, returned credit, peers that are gone. Out: lease ids, and the leases that ended.
Does not know: how payloads travel or where an offset points.
"""

import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from antiphon.messages.interstage import ChunkHeader

INLINE_BYTES = 1024
"""Up to this size a payload rides in the message: copies through a socket then cost no more than the arena."""


def needs_lease(header: ChunkHeader, size_bytes: int) -> bool:
    """True if a chunk with so large a payload takes credit, which its consumer gives back.

    A request's last chunk on an edge takes none if it rides in the message: there are as many as requests, which are
    bounded, and its producer need not be woken once more to let go of the request.
    """
    return size_bytes > INLINE_BYTES or (size_bytes > 0 and not header.is_terminal)


class Credit(msgspec.Struct, frozen=True):
    """These leases are released."""

    consumer: str
    leases: Sequence[int]


class Lease(msgspec.Struct, frozen=True, gc=False):
    """One chunk's payload that a consumer may still read. `offset` is None if it lies in no arena.

    granted_s: monotonic time.
    """

    peer: str
    request_id: str
    num_bytes: int
    offset: int | None
    edge: str = ""
    granted_s: float = 0.0


@dataclass(slots=True)
class _Held:
    """What consumers hold of one request."""

    num_leases: int = 0
    num_bytes: int = 0


_MAX_FORGOTTEN = 4096


class ForgottenPeers:
    """Owns the addresses of the last 4,096 processes that have ended; nothing is sent to them any more."""

    def __init__(self) -> None:
        self._addresses: OrderedDict[str, None] = OrderedDict()

    def add(self, address: str) -> None:
        """The process there has ended."""
        self._addresses[address] = None
        if len(self._addresses) > _MAX_FORGOTTEN:
            self._addresses.popitem(last=False)

    def __contains__(self, address: str) -> bool:
        return address in self._addresses


class Leases:
    """Owns the leases of one producer, whose bytes together never exceed `limit_bytes`.

    window_bytes: what a request may hold whatever the others hold; more only while half of the limit suffices for all.
    So, with windows of limit / (2 x requests), those that stand still never stop one that goes on.

    Ids are never used twice and start at a random number: a credit meant for an earlier process at the
    same address matches nothing.
    """

    def __init__(self, limit_bytes: int, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self._limit_bytes = limit_bytes
        self._next_id = 1 + secrets.randbits(62)
        self._leases: dict[int, Lease] = {}
        self._held: dict[str, _Held] = {}
        self.used_bytes = 0
        self.high_water_bytes = 0

    def __len__(self) -> int:
        return len(self._leases)

    def fits(self, request_id: str, num_bytes: int) -> bool:
        """True if the credit suffices for `num_bytes` more of this request."""
        held = self._held.get(request_id)
        held_bytes = held.num_bytes if held is not None else 0
        limit_bytes = self._limit_bytes if held_bytes + num_bytes <= self.window_bytes else self._limit_bytes // 2
        return self.used_bytes + num_bytes <= limit_bytes

    def grant(self, lease: Lease) -> int:
        """Book `lease` and give its id; the caller has asked `fits`."""
        lease_id, num_bytes = self._next_id, lease.num_bytes
        self._next_id = lease_id + 1
        self._leases[lease_id] = lease
        held = self._held.get(lease.request_id)
        if held is None:
            held = self._held[lease.request_id] = _Held()
        held.num_leases += 1
        held.num_bytes += num_bytes
        self.used_bytes += num_bytes
        if self.used_bytes > self.high_water_bytes:
            self.high_water_bytes = self.used_bytes
        return lease_id

    def take_in(self, credit: Credit) -> list[Lease]:
        """End the leases that `credit` returns; ids that its sender does not hold are ignored."""
        ended = []
        for lease_id in credit.leases:
            lease = self._leases.get(lease_id)
            if lease is not None and lease.peer == credit.consumer:
                self._end(lease_id, lease)
                ended.append(lease)
        return ended

    def reclaim(self, peer: str) -> list[Lease]:
        """End every lease that `peer` holds."""
        held = [(lease_id, lease) for lease_id, lease in self._leases.items() if lease.peer == peer]
        for lease_id, lease in held:
            self._end(lease_id, lease)
        return [lease for _, lease in held]

    def num_held(self, request_id: str) -> int:
        """How many leases of `request_id` have not ended."""
        held = self._held.get(request_id)
        return held.num_leases if held is not None else 0

    def oldest_s(self, now_s: float) -> dict[str, float]:
        """Edge -> age of its oldest lease; edges without one are left out."""
        ages_s: dict[str, float] = {}
        for lease in self._leases.values():  # in the order in which they were granted
            ages_s.setdefault(lease.edge, now_s - lease.granted_s)
        return ages_s

    def _end(self, lease_id: int, lease: Lease) -> None:
        del self._leases[lease_id]
        self.used_bytes -= lease.num_bytes
        held = self._held[lease.request_id]
        held.num_leases -= 1
        held.num_bytes -= lease.num_bytes
        if not held.num_leases:
            del self._held[lease.request_id]
