"""Counters of the inter-stage lane: what a process has sent and received, per edge and in all.

In: the connector's statistics, one EdgeMeter per edge. Out: Counters. Does not know: requests, stages.
"""

from collections.abc import Iterator, Mapping

from antiphon.connector.base import ConnectorStatistics
from antiphon.connector.edge_meter import EdgeMeter
from antiphon.messages.control import Counter


def connector_counters(replica: str, connector: ConnectorStatistics) -> Iterator[Counter]:
    """What a process has sent and received on all edges, and the room for it."""
    values = {
        "chunks_put_total": connector.num_chunks_put,
        "chunk_bytes_put_total": connector.num_bytes_put,
        "chunks_received_total": connector.num_chunks_received,
        "chunk_bytes_received_total": connector.num_bytes_received,
        "chunks_failed_total": connector.num_chunks_failed,
        "chunks_refused_total": connector.num_refused,
        "arena_bytes": connector.arena_bytes,
        "arena_used_bytes": connector.arena_used_bytes,
        "arena_high_water_bytes": connector.arena_high_water_bytes,
        "leases": connector.num_leases,
    }
    labels = (("replica", replica),)
    for name, value in values.items():
        yield Counter(name, labels, float(value))
    yield Counter("lane_unreached_total", (("lane", "chunks"), ("process", replica)), float(connector.num_unreached))


def edge_counters(
    replica: str, meters: Mapping[str, EdgeMeter], oldest_unreleased_s: Mapping[str, float]
) -> Iterator[Counter]:
    """What `replica` has sent on each edge. meters: edge -> meter; oldest_unreleased_s: edge -> age of a chunk."""
    for edge, meter in meters.items():
        labels = (("edge", edge), ("replica", replica))
        yield Counter("edge_chunks_total", labels, float(meter.num_chunks))
        yield Counter("edge_rows_total", labels, float(meter.num_rows))
        yield Counter("edge_bytes_total", labels, float(meter.num_bytes))
        yield Counter("edge_send_seconds_total", labels, meter.send_s)
        yield Counter("edge_wait_seconds_total", labels, meter.wait_s)
        yield Counter("edge_oldest_unreleased_s", labels, oldest_unreleased_s.get(edge, 0.0))
