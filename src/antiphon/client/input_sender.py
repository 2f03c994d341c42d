"""Sends requests' input to their entry replicas over the inter-stage lane, as credit allows.

In: EntryPayloads and where they go. Out: chunks on the edge `client-><entry stage>`.
Does not know: what the input means, or what becomes of it.
"""

import time
from collections.abc import Iterator

from antiphon.config.pipeline import CLIENT, ChunkPlan
from antiphon.connector.base import Connector
from antiphon.connector.cursor import EdgeCursor, EdgeTarget
from antiphon.connector.edge_meter import EdgeMeter
from antiphon.ids import edge_name, stage_of
from antiphon.messages.control import Counter, RequestAccepted
from antiphon.messages.payload import EntryPayload
from antiphon.monitor.edge_counters import connector_counters, edge_counters

_PLAN = ChunkPlan(1, 1)


class InputSender:
    """Owns the input of every request that has not been sent completely."""

    def __init__(self, name: str, connector: Connector) -> None:
        self._name = name
        self._connector = connector
        self._cursors: dict[str, EdgeCursor] = {}
        self._meters: dict[str, EdgeMeter] = {}
        self._was_waiting = False

    def startup(self) -> None:
        """Open the connector."""
        self._connector.startup()

    def fileno(self) -> int:
        """Readable when credit has come back; then call `receive`."""
        return self._connector.fileno()

    def send(self, accepted: RequestAccepted, payload: EntryPayload) -> None:
        """Take a request's whole input; it leaves with `flush`, as credit allows. StageError if it can never fit."""
        edge = edge_name(CLIENT, stage_of(accepted.entry_replica))
        target = EdgeTarget(
            request_id=accepted.request_id,
            epoch=accepted.epoch,
            edge=edge,
            producer=self._name,
            address=accepted.entry_address,
            plan=_PLAN,
        )
        meter = self._meters.setdefault(edge, EdgeMeter())
        cursor = EdgeCursor(target, self._connector.max_chunk_bytes, meter)
        cursor.append(payload.rows, payload.whole)
        cursor.finish()
        self._cursors[accepted.request_id] = cursor
        self._put(accepted.request_id, cursor)

    def receive(self) -> None:
        """Take in credit and send what it allows."""
        while (chunk := self._connector.get()) is not None:
            self._connector.release(chunk)
        for request_id, cursor in list(self._cursors.items()):
            self._put(request_id, cursor)
        self.flush()

    def flush(self) -> None:
        """Send what there is credit for."""
        self._connector.flush()
        self._note_waiting()

    def _put(self, request_id: str, cursor: EdgeCursor) -> None:
        cursor.flush(self._connector)
        if cursor.is_closed:
            del self._cursors[request_id]

    def counters(self) -> Iterator[Counter]:
        """What has been sent, per edge and in all."""
        self._note_waiting()
        statistics = self._connector.statistics()
        yield from edge_counters(self._name, self._meters, statistics.oldest_unreleased_s)
        yield from connector_counters(self._name, statistics)

    def _note_waiting(self) -> None:
        if not self._cursors and not self._was_waiting:
            return
        waiting = {cursor.target.edge for cursor in self._cursors.values() if cursor.is_refused}
        self._was_waiting = bool(waiting)
        for edge, meter in self._meters.items():
            meter.note_waiting(edge in waiting, time.monotonic())

    def forget(self, request_id: str) -> None:
        """Drop what has not been sent of a request that is over."""
        self._cursors.pop(request_id, None)

    def forget_peer(self, address: str) -> None:
        """The replica at `address` has died: drop what waits for it, and take back what it held."""
        for request_id, cursor in list(self._cursors.items()):
            if cursor.target.address == address:
                del self._cursors[request_id]
        self._connector.forget_peer(address)
        self.receive()

    def close(self) -> None:
        """Close the connector."""
        self._cursors.clear()
        self._connector.close()
