"""Admission: how many requests run, how many wait, and what the rest is told.

In: submitted requests and releases. Out: admit, wait, or OverloadedError with a computed Retry-After.
Does not know: stages, replicas, sockets.
"""

import time
from collections import OrderedDict, deque

from antiphon.errors import OverloadedError
from antiphon.messages.control import SubmitRequest

_RATE_WINDOW = 64
_MAX_RETRY_AFTER_S = 60.0


class Admission:
    """Owns the queue of requests that wait for a place; at most `max_queue` of them, `max_inflight` running."""

    def __init__(self, *, max_inflight: int, max_queue: int) -> None:
        self._max_inflight = max_inflight
        self._max_queue = max_queue
        self._queue: OrderedDict[str, SubmitRequest] = OrderedDict()
        self._num_inflight = 0
        self._max_queued = 0
        self._release_times_s: deque[float] = deque(maxlen=_RATE_WINDOW)

    @property
    def num_inflight(self) -> int:
        """Requests admitted and not released."""
        return self._num_inflight

    @property
    def num_queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    def take_max_queued(self) -> int:
        """The most requests that have waited for a place at once since the last call."""
        most, self._max_queued = self._max_queued, len(self._queue)
        return most

    def is_queued(self, request_id: str) -> bool:
        """True if a request of that id waits."""
        return request_id in self._queue

    def submit(self, request: SubmitRequest) -> None:
        """Queue a request for `admit_next`; OverloadedError if no place is free and the queue is full."""
        if self._num_inflight + len(self._queue) >= self._max_inflight + self._max_queue:
            wait_s = self._retry_after_s()
            raise OverloadedError(
                f"{self._num_inflight} requests run and {len(self._queue)} wait; try again in {wait_s:.0f} s",
                retry_after_s=wait_s,
            )
        self._queue[request.request_id] = request

    def resubmit(self, request: SubmitRequest) -> None:
        """Queue a request that has lost its place through no fault of its own, before all others."""
        self._queue[request.request_id] = request
        self._queue.move_to_end(request.request_id, last=False)

    def admit_next(self) -> SubmitRequest | None:
        """The next request that may run now, counted as in flight, or None."""
        if not self._queue or self._num_inflight >= self._max_inflight:
            self._max_queued = max(self._max_queued, len(self._queue))
            return None
        self._num_inflight += 1
        return self._queue.popitem(last=False)[1]

    def released(self) -> None:
        """An admitted request is over."""
        self._num_inflight -= 1
        self._release_times_s.append(time.monotonic())

    def withdraw(self, request_id: str) -> SubmitRequest | None:
        """Take a waiting request out of the queue and give it; None if it is not there."""
        return self._queue.pop(request_id, None)

    def withdraw_all_of(self, api_server: str) -> None:
        """Drop the waiting requests of an api-server that has gone."""
        for request in [request for request in self._queue.values() if request.api_server == api_server]:
            del self._queue[request.request_id]

    def _retry_after_s(self) -> float:
        """The time in which the queue drains at the rate of the last 64 releases; 1 to 60 s."""
        times_s = self._release_times_s
        if len(times_s) < 2:
            return 1.0
        rate = (len(times_s) - 1) / max(1e-3, time.monotonic() - times_s[0])
        return min(_MAX_RETRY_AFTER_S, max(1.0, len(self._queue) / rate))
