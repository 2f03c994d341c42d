"""Admission: how many requests run, how many wait, whose turn it is, and what the rest is told.

In: submitted requests and releases. Out: admit, wait, or OverloadedError with a computed Retry-After.
Does not know: stages, replicas, sockets, who a client is.
"""

from antiphon.messages.control import AdmissionNews, SubmitRequest
from antiphon.orchestrator.fair_queue import FairQueue
from antiphon.orchestrator.service_rate import ServiceRate

_MAX_RETRY_AFTER_S = 60.0


class Admission:
    """Owns the queue of requests that wait for a place; at most `max_queue` of them, `max_inflight` running.

    When the queue is full, a client that has at least two requests less in it than another one still gets in: the
    newest request of the client that has most gives up its place. So no client keeps another one out.
    """

    def __init__(self, *, max_inflight: int, max_queue: int) -> None:
        self._max_inflight = max_inflight
        self._max_queue = max_queue
        self._queue = FairQueue()
        self._num_inflight = 0
        self._max_queued = 0
        self._rate = ServiceRate()

    @property
    def num_inflight(self) -> int:
        """Requests admitted and not released."""
        return self._num_inflight

    @property
    def num_queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @property
    def is_full(self) -> bool:
        """True if a new request gets a place only in another client's stead, if at all."""
        return self._num_inflight + len(self._queue) >= self._max_inflight + self._max_queue

    def take_max_queued(self) -> int:
        """The most requests that have waited for a place at once since the last call."""
        most, self._max_queued = self._max_queued, len(self._queue)
        return most

    def is_queued(self, request_id: str) -> bool:
        """True if a request of that id waits."""
        return request_id in self._queue

    def news(self) -> AdmissionNews:
        """What a new request would meet now."""
        max_waiting = self._max_waiting() if self.is_full else None
        return AdmissionNews(self._num_inflight, len(self._queue), max_waiting, self._retry_after_s())

    def submit(self, request: SubmitRequest) -> SubmitRequest | None:
        """Queue a request for `admit_next`; gives the one that has lost its place in the queue to it, if one has.

        OverloadedError if no place is free, the queue is full, and no other client has more requests in it.
        """
        displaced = None
        if self.is_full:
            if self._queue.num_of(request.client) >= self._max_waiting():
                raise self.news().refusal()
            displaced = self._queue.pop_newest_of_longest()
        self._queue.put(request)
        return displaced

    def resubmit(self, request: SubmitRequest) -> None:
        """Queue a request that has lost its place through no fault of its own, before all that have not."""
        self._queue.put_first(request)

    def admit_next(self) -> SubmitRequest | None:
        """The next request that may run now, counted as in flight, or None."""
        if not self._queue:
            return None
        if self._num_inflight >= self._max_inflight:
            self._max_queued = max(self._max_queued, len(self._queue))
            return None
        self._num_inflight += 1
        self._rate.begins()
        return self._queue.pop()

    def released(self) -> None:
        """An admitted request is over."""
        self._num_inflight -= 1
        self._rate.ends()

    def withdraw(self, request_id: str) -> SubmitRequest | None:
        """Take a waiting request out of the queue and give it; None if it is not there."""
        return self._queue.remove(request_id)

    def withdraw_all_of(self, api_server: str) -> None:
        """Drop the waiting requests of an api-server that has gone."""
        for request in [request for request in self._queue if request.api_server == api_server]:
            self._queue.remove(request.request_id)

    def _max_waiting(self) -> int:
        """How many waiting requests a client must not have to get in, while it is full."""
        return max(0, self._queue.longest() - 1)

    def _retry_after_s(self) -> float:
        """The time in which the queue, and one request more, gets its places at the measured rate; 1 to 60 s."""
        per_s = self._rate.per_s()
        return min(_MAX_RETRY_AFTER_S, max(1.0, (len(self._queue) + 1) / per_s)) if per_s else 1.0
