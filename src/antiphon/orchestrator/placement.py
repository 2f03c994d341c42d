"""Placement: binds one replica to every stage of a request's route, and says who its neighbours are.

In: a Route and the pools. Out: a Binding, or OverloadedError naming the stage without a live replica.
Does not know: sockets or request states.
"""

from dataclasses import dataclass

from antiphon.config.pipeline import CLIENT, Route
from antiphon.errors import OverloadedError
from antiphon.ids import edge_name
from antiphon.messages.control import Peer, StartRequest, SubmitRequest
from antiphon.orchestrator.stage_pool import Replica, StagePool


@dataclass(frozen=True)
class Binding:
    """Stage -> the replica that serves it for one request."""

    route: Route
    replicas: dict[str, Replica]

    @property
    def entry(self) -> Replica:
        """The replica that the api-server sends the input to."""
        return self.replicas[self.route.entry]

    @property
    def last(self) -> frozenset[str]:
        """The replicas that hand nothing on."""
        return frozenset(self.replicas[stage].name for stage in self.route.last_stages)

    def start_request(self, submit: SubmitRequest, stage: str, client_address: str) -> StartRequest:
        """What the replica of `stage` has to know: its neighbours, and whether the client hears it."""
        producers = self._peers(self.route.producers[stage])
        if stage == self.route.entry:
            producers.append(Peer(edge_name(CLIENT, stage), submit.api_server, ""))
        consumers = self._peers(self.route.consumers[stage])
        return StartRequest(
            request_id=submit.request_id,
            epoch=submit.epoch,
            task=submit.task,
            params=submit.params,
            producers=tuple(producers),
            consumers=tuple(consumers),
            client_address=client_address if stage in self.route.finals else "",
            api_server=submit.api_server,
        )

    def _peers(self, neighbours: dict[str, str]) -> list[Peer]:
        """neighbours: edge -> stage."""
        bound = [(edge, self.replicas[stage]) for edge, stage in neighbours.items()]
        return [Peer(edge, replica.name, replica.connector_address) for edge, replica in bound]


def bind(route: Route, pools: dict[str, StagePool]) -> Binding:
    """Bind the least loaded replica of every stage of the route; all or none."""
    replicas: dict[str, Replica] = {}
    for stage in route.stages:
        replica = pools[stage].bind_least_inflight()
        if replica is None:
            for bound_stage, bound in replicas.items():
                pools[bound_stage].release(bound.name)
            raise OverloadedError(f"stage {stage} has no live replica; it is starting or has died, see its log")
        replicas[stage] = replica
    return Binding(route, replicas)
