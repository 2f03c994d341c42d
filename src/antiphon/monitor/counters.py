"""Counters as they travel in StatsReports: names and labels, the same in every process.

In: counter owners' values. Out: Counters. Does not know: who reads them.
"""

from collections.abc import Iterator, Mapping

from antiphon.messages.control import Counter
from antiphon.transport.channel import LaneCounters


def lane_counters(process: str, lanes: Mapping[str, LaneCounters]) -> Iterator[Counter]:
    """What `process` has sent or received on each of its lanes."""
    for lane, counted in lanes.items():
        labels = (("lane", lane), ("process", process))
        yield Counter("lane_messages_total", labels, float(counted.num_messages))
        yield Counter("lane_bytes_total", labels, float(counted.num_bytes))
        yield Counter("lane_max_message_bytes", labels, float(counted.max_message_bytes))
        yield Counter("lane_unreached_total", labels, float(counted.num_unreached))
