"""Placement: binds one replica to every stage of a request's route, and says who its neighbours are.

In: a Route and the pools. Out: a Binding, or OverloadedError naming the stage without a live replica.
Does not know: sockets or request states.
"""

from dataclasses import dataclass
from functools import cached_property

from antiphon.config.pipeline import CLIENT, Route
from antiphon.errors import OverloadedError
from antiphon.ids import edge_name
from antiphon.messages.control import Peer, StartRequest, SubmitRequest
from antiphon.orchestrator.stage_pool import Replica, StagePool

_MAX_BINDINGS = 1024


@dataclass(frozen=True)
class Binding:
    """Stage -> the replica that serves it; the same for every request that is bound to these."""

    route: Route
    replicas: dict[str, Replica]

    @property
    def entry(self) -> Replica:
        """The replica that the api-server sends the input to."""
        return self.replicas[self.route.entry]

    @cached_property
    def names(self) -> frozenset[str]:
        """Every replica."""
        return frozenset(replica.name for replica in self.replicas.values())

    @cached_property
    def last(self) -> frozenset[str]:
        """The replicas that hand nothing on."""
        return frozenset(self.replicas[stage].name for stage in self.route.last_stages)

    @cached_property
    def _producers(self) -> dict[str, tuple[Peer, ...]]:
        """Stage -> those whose rows it gets; not the api-server."""
        return {stage: self._peers(edges) for stage, edges in self.route.producers.items()}

    @cached_property
    def _consumers(self) -> dict[str, tuple[Peer, ...]]:
        return {stage: self._peers(edges) for stage, edges in self.route.consumers.items()}

    def start_request(self, submit: SubmitRequest, stage: str, client_address: str) -> StartRequest:
        """What the replica of `stage` has to know: its neighbours, and whether the client hears it."""
        producers = self._producers[stage]
        if stage == self.route.entry:
            producers = (*producers, Peer(edge_name(CLIENT, stage), submit.api_server, ""))
        return StartRequest(
            request_id=submit.request_id,
            epoch=submit.epoch,
            task=submit.task,
            params=submit.params,
            producers=producers,
            consumers=self._consumers[stage],
            client_address=client_address if stage in self.route.finals else "",
            api_server=submit.api_server,
        )

    def _peers(self, neighbours: dict[str, str]) -> tuple[Peer, ...]:
        """neighbours: edge -> stage."""
        bound = [(edge, self.replicas[stage]) for edge, stage in neighbours.items()]
        return tuple(Peer(edge, replica.name, replica.connector_address) for edge, replica in bound)


class Placement:
    """Owns the bindings that were made lately, at most 1,024: who is whose neighbour is worked out once for each."""

    def __init__(self, pools: dict[str, StagePool]) -> None:
        self._pools = pools
        self._bindings: dict[tuple[object, ...], Binding] = {}
        """By what makes the route, and its replicas."""

    def bind(self, route: Route) -> Binding:
        """Bind the least loaded replica of every stage of the route; all or none."""
        replicas: list[Replica] = []
        for stage in route.stages:
            replica = self._pools[stage].bind_least_inflight()
            if replica is None:
                for bound_stage, bound in zip(route.stages, replicas, strict=False):
                    self._pools[bound_stage].release(bound.name)
                raise OverloadedError(f"stage {stage} has no live replica; it is starting or has died, see its log")
            replicas.append(replica)
        key = (route.task, route.entry, route.finals, *replicas)
        binding = self._bindings.get(key)
        if binding is None:
            if len(self._bindings) == _MAX_BINDINGS:
                self._bindings.clear()
            binding = self._bindings[key] = Binding(route, dict(zip(route.stages, replicas, strict=True)))
        return binding
