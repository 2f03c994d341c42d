"""The live replicas of one stage, and how many requests each holds.

In: replicas that come and go, bindings and releases. Out: the replica that placement picks.
Does not know: requests' states, sockets.
"""

import msgspec


class Replica(msgspec.Struct, frozen=True):
    """A live replica and where it hears."""

    name: str
    control_address: str
    connector_address: str
    pid: int = 0


class StagePool:
    """Owns one stage's replicas and their in-flight counts."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self._replicas: dict[str, Replica] = {}
        self._inflight: dict[str, int] = {}
        self._num_bound: dict[str, int] = {}
        self._max_inflight: dict[str, int] = {}
        self._draining: set[str] = set()
        self._bindable: list[str] = []
        """Those that are not draining."""

    def join(self, replica: Replica) -> None:
        """A replica is ready to be bound. One that says so twice keeps what is bound to it."""
        self._replicas[replica.name] = replica
        self._inflight.setdefault(replica.name, 0)
        self._max_inflight.setdefault(replica.name, 0)
        self._num_bound.setdefault(replica.name, 0)
        self._update_bindable()

    def leave(self, name: str) -> Replica | None:
        """A replica has gone; gives it, or None if it was not here."""
        self._draining.discard(name)
        self._inflight.pop(name, None)
        self._num_bound.pop(name, None)
        gone = self._replicas.pop(name, None)
        self._update_bindable()
        return gone

    def drain(self, name: str) -> None:
        """Bind nothing more to `name`."""
        if name in self._replicas:
            self._draining.add(name)
            self._update_bindable()

    def is_drained(self, name: str) -> bool:
        """True if `name` shall leave and nothing is bound to it."""
        return name in self._draining and not self._inflight[name]

    @property
    def num_live(self) -> int:
        """How many replicas can be bound."""
        return len(self._bindable)

    def bind_least_inflight(self) -> Replica | None:
        """Bind the replica with the fewest requests (of equals, the one bound least often); None if there is none."""
        if not self._bindable:
            return None
        name = min(self._bindable, key=self._load_of) if len(self._bindable) > 1 else self._bindable[0]
        self._inflight[name] += 1
        self._num_bound[name] += 1
        self._max_inflight[name] = max(self._max_inflight.get(name, 0), self._inflight[name])
        return self._replicas[name]

    def _update_bindable(self) -> None:
        self._bindable = [name for name in self._replicas if name not in self._draining]

    def _load_of(self, name: str) -> tuple[int, int]:
        return self._inflight[name], self._num_bound[name]

    def release(self, name: str) -> None:
        """A request bound to `name` has been released; ignored if the replica has gone meanwhile."""
        if name in self._inflight:
            self._inflight[name] -= 1

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """The live replicas."""
        return tuple(self._replicas.values())

    def find(self, name: str) -> Replica | None:
        """The live replica called `name`."""
        return self._replicas.get(name)

    def inflight(self) -> dict[str, int]:
        """Replica -> requests bound and not released."""
        return dict(self._inflight)

    def take_max_inflight(self) -> dict[str, int]:
        """Replica -> the most requests it has held since the last call; those that have left since are in it."""
        most, self._max_inflight = self._max_inflight, dict(self._inflight)
        return most
