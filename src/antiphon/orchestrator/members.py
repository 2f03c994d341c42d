"""Who takes part: the replicas of every stage and the api-servers, from Ready until their process has ended.

In: Ready, drains, ended processes. Out: pools to bind from, members to speak to, and their counts.
Does not know: requests, sockets.
"""

from dataclasses import dataclass

from antiphon.config.pipeline import PipelineSpec
from antiphon.ids import stage_of
from antiphon.messages.control import Counter, Ready
from antiphon.orchestrator.stage_pool import Replica, StagePool


@dataclass(frozen=True)
class ApiServer:
    """An api-server and where it hears: control lane, credit of its input, client lane."""

    name: str
    control_address: str
    connector_address: str
    client_address: str
    pid: int = 0


Member = Replica | ApiServer


class Members:
    """Owns the stage pools and the list of api-servers."""

    def __init__(self, pipeline: PipelineSpec) -> None:
        self.pools = {stage.name: StagePool(stage.name) for stage in pipeline.stages}
        self._pool_of: dict[str, StagePool] = {}
        """Of every replica that is here."""
        self._api_servers: dict[str, ApiServer] = {}

    def join(self, ready: Ready) -> Member:
        """Take a process in."""
        pool = self.pool_of(ready.name)
        if pool is not None:
            replica = Replica(ready.name, ready.control_address, ready.connector_address, ready.pid)
            pool.join(replica)
            self._pool_of[ready.name] = pool
            return replica
        api_server = ApiServer(
            ready.name, ready.control_address, ready.connector_address, ready.client_address, ready.pid
        )
        self._api_servers[ready.name] = api_server
        return api_server

    def leave(self, name: str) -> Member | None:
        """Take a process out; gives it, or None if it was not here."""
        pool = self._pool_of.pop(name, None)
        return pool.leave(name) if pool is not None else self._api_servers.pop(name, None)

    def pool_of(self, name: str) -> StagePool | None:
        """The pool that a replica called `name` belongs to; None for an api-server."""
        return self._pool_of.get(name) or self.pools.get(stage_of(name))

    def replica(self, name: str) -> Replica | None:
        """The replica called `name`, if it is here."""
        pool = self._pool_of.get(name)
        return pool.find(name) if pool is not None else None

    def api_server(self, name: str) -> ApiServer | None:
        """The api-server called `name`, if it is here."""
        return self._api_servers.get(name)

    def find(self, name: str) -> Member | None:
        """Whoever is called `name`."""
        return self.replica(name) or self.api_server(name)

    @property
    def api_servers(self) -> tuple[ApiServer, ...]:
        """Every api-server."""
        return tuple(self._api_servers.values())

    @property
    def all(self) -> tuple[Member, ...]:
        """Every api-server and every replica."""
        return (*self._api_servers.values(), *(replica for pool in self.pools.values() for replica in pool.replicas))

    def take_max_inflight(self) -> dict[str, int]:
        """As StagePool.take_max_inflight, of all pools."""
        return {name: most for pool in self.pools.values() for name, most in pool.take_max_inflight().items()}

    def counters(self) -> list[Counter]:
        """Live replicas per stage, and requests bound per replica."""
        counters = []
        for pool in self.pools.values():
            counters.append(Counter("replicas_live", (("stage", pool.stage),), float(pool.num_live)))
            for name, count in pool.inflight().items():
                counters.append(Counter("replica_inflight", (("replica", name),), float(count)))
        return counters
