"""What a replica has put on its lanes: per edge, per api-server, and how long it waited for room.

In: what the output router sends. Out: Counters. Does not know: requests, connectors, sockets.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from antiphon.connector.edge_meter import EdgeMeter
from antiphon.messages.client import AudioChunk, ClientFrame
from antiphon.messages.control import Counter
from antiphon.monitor.edge_counters import edge_counters


@dataclass
class _ClientLane:
    """One api-server's."""

    process: str
    num_sent: int = 0


class OutputMeter:
    """Owns the sums of one replica's out-edges and client lanes. edges: name -> meter."""

    def __init__(self, edges: tuple[str, ...]) -> None:
        self.edges = {edge: EdgeMeter() for edge in edges}
        self._any_edge = EdgeMeter()
        self._lanes: dict[str, _ClientLane] = {}
        self._audio_s = 0.0

    def open_lane(self, address: str, process: str) -> None:
        """Outputs for the api-server `process` go to `address`; "" = to nobody."""
        if address:
            self._lanes.setdefault(address, _ClientLane(process))

    def close_lane(self, address: str) -> None:
        """The api-server there has gone, and with it what it has not read."""
        self._lanes.pop(address, None)

    def num_sent(self, address: str) -> int:
        """Outputs sent to `address` so far."""
        return self._lanes[address].num_sent if address in self._lanes else 0

    def sent(self, address: str, frame: ClientFrame) -> None:
        """This frame has left."""
        if address in self._lanes:
            self._lanes[address].num_sent = frame.num_sent
        for addressed in frame.addressed:
            for output in addressed.outputs:
                if type(output) is AudioChunk:
                    self._audio_s += output.duration_s

    def note_waiting(self, edges: Collection[str], now_s: float) -> None:
        """The edges on which a chunk waits for room from now on."""
        for edge, meter in self.edges.items():
            meter.note_waiting(edge in edges, now_s)
        self._any_edge.note_waiting(bool(edges), now_s)

    def counters(self, replica: str, oldest_unreleased_s: Mapping[str, float]) -> list[Counter]:
        """Everything, under the name of the replica."""
        label = ("replica", replica)
        return [
            Counter("credit_wait_seconds_total", (label,), self._any_edge.wait_s),
            Counter("output_audio_seconds_total", (label,), self._audio_s),
            *(
                Counter("client_messages_sent_total", (label, ("process", lane.process)), float(lane.num_sent))
                for lane in self._lanes.values()
            ),
            *edge_counters(replica, self.edges, oldest_unreleased_s),
        ]
