"""What an api-server finds on its client lane: how much of each replica it has read, and how long that lay there.

In: ClientFrames as they are read. Out: Counters per replica. Does not know: requests, sockets.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from antiphon.messages.client import ClientFrame, num_outputs
from antiphon.messages.control import Counter


@dataclass
class _Extremes:
    """The largest values of one window."""

    queue: int = 0
    age_s: float = 0.0


class LaneMeter:
    """Owns the counts per replica. The extremes are of the window that is open and the one before.

    `consumed` is the replica's own number of outputs sent, as its last frame said: so the two agree across restarts.
    """

    def __init__(self) -> None:
        self._consumed: dict[str, int] = {}
        self._extremes: dict[str, _Extremes] = {}
        self._last_extremes: dict[str, _Extremes] = {}

    def read(self, frames: list[ClientFrame], now_s: float) -> None:
        """These frames were found waiting together, oldest first."""
        waiting: defaultdict[str, int] = defaultdict(int)
        for frame in frames:
            waiting[frame.replica] += num_outputs(frame.addressed)
            self._consumed[frame.replica] = frame.num_sent
            extremes = self._extremes.setdefault(frame.replica, _Extremes())
            extremes.age_s = max(extremes.age_s, now_s - frame.sent_s)
        for replica, count in waiting.items():
            self._extremes[replica].queue = max(self._extremes[replica].queue, count)

    def forget(self, replica: str) -> None:
        """The replica has gone; one that takes its name counts from 0."""
        self._consumed.pop(replica, None)

    def close_window(self) -> None:
        """A window is over."""
        self._last_extremes, self._extremes = self._extremes, {}

    def counters(self, process: str) -> Iterator[Counter]:
        """Everything, as read by `process`."""
        for replica, consumed in self._consumed.items():
            labels = (("replica", replica), ("process", process))
            windows = [each[replica] for each in (self._extremes, self._last_extremes) if replica in each]
            yield Counter("client_messages_consumed_total", labels, float(consumed))
            yield Counter("client_queue_max", labels, float(max((each.queue for each in windows), default=0)))
            yield Counter("client_oldest_output_s", labels, max((each.age_s for each in windows), default=0.0))
