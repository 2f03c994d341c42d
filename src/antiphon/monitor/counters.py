"""Counters as they travel in StatsReports: names and labels, the same in every process.

In: counter owners' values. Out: lists of Counter. Does not know: who reads them.
"""

from antiphon.messages.control import Counter
from antiphon.transport.channel import LaneCounters

Labels = tuple[tuple[str, str], ...]


def lane_counters_as_list(labels: Labels, lane: LaneCounters) -> list[Counter]:
    """The counters of one lane under the given labels."""
    return [
        Counter("lane_messages_total", labels, float(lane.num_messages)),
        Counter("lane_bytes_total", labels, float(lane.num_bytes)),
        Counter("lane_max_message_bytes", labels, float(lane.max_message_bytes)),
    ]
