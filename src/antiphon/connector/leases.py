"""A producer's credit: what it has put and its consumers have not released.

In: grants, returned credit, peers that are gone. Out: lease ids, and the leases that ended.
Does not know: how payloads travel or where an offset points.
"""

import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec


class Credit(msgspec.Struct, frozen=True, array_like=True):
    """consumer -> producer: these leases are released."""

    consumer: str
    leases: tuple[int, ...]


@dataclass(frozen=True)
class Lease:
    """One chunk's payload that a consumer may still read. `offset` is None if it lies in no arena.

    granted_s: monotonic time.
    """

    peer: str
    request_id: str
    num_bytes: int
    offset: int | None
    edge: str = ""
    granted_s: float = 0.0


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
        self._num_by_request: Counter[str] = Counter()
        self._bytes_by_request: Counter[str] = Counter()
        self.used_bytes = 0
        self.high_water_bytes = 0

    def __len__(self) -> int:
        return len(self._leases)

    def fits(self, request_id: str, num_bytes: int) -> bool:
        """True if the credit suffices for `num_bytes` more of this request."""
        used_bytes, held_bytes = self.used_bytes + num_bytes, self._bytes_by_request[request_id] + num_bytes
        if held_bytes <= self.window_bytes:
            return used_bytes <= self._limit_bytes
        return used_bytes <= self._limit_bytes // 2

    def grant(self, lease: Lease) -> int:
        """Book `lease` and give its id; the caller has asked `fits`."""
        lease_id = self._next_id
        self._next_id += 1
        self._leases[lease_id] = lease
        self._num_by_request[lease.request_id] += 1
        self._bytes_by_request[lease.request_id] += lease.num_bytes
        self.used_bytes += lease.num_bytes
        self.high_water_bytes = max(self.high_water_bytes, self.used_bytes)
        return lease_id

    def take_in(self, credit: Credit) -> list[Lease]:
        """End the leases that `credit` returns; ids that its sender does not hold are ignored."""
        return self._end(i for i in credit.leases if i in self._leases and self._leases[i].peer == credit.consumer)

    def reclaim(self, peer: str) -> list[Lease]:
        """End every lease that `peer` holds."""
        return self._end([lease_id for lease_id, lease in self._leases.items() if lease.peer == peer])

    def num_held(self, request_id: str) -> int:
        """How many leases of `request_id` have not ended."""
        return self._num_by_request[request_id]

    def oldest_s(self, now_s: float) -> dict[str, float]:
        """Edge -> age of its oldest lease; edges without one are left out."""
        ages_s: dict[str, float] = {}
        for lease in self._leases.values():  # in the order in which they were granted
            ages_s.setdefault(lease.edge, now_s - lease.granted_s)
        return ages_s

    def _end(self, lease_ids: Iterable[int]) -> list[Lease]:
        ended = []
        for lease_id in lease_ids:
            lease = self._leases.pop(lease_id)
            self.used_bytes -= lease.num_bytes
            self._num_by_request[lease.request_id] -= 1
            self._bytes_by_request[lease.request_id] -= lease.num_bytes
            if not self._num_by_request[lease.request_id]:
                del self._num_by_request[lease.request_id], self._bytes_by_request[lease.request_id]
            ended.append(lease)
        return ended
