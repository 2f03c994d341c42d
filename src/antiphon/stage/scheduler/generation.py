"""The scheduler of the generation engine: which requests are in the next batch.

In: requests that come and go. Out: a batch of at most max_batch_size, round-robin among those that can run.
Does not know: models or outputs.
"""

from collections import OrderedDict, deque
from collections.abc import Callable

from antiphon.stage.request import StageRequest


class GenerationScheduler:
    """Owns two queues: `running` (at most max_num_seqs requests, in the order they were served) and `waiting`."""

    def __init__(self, *, max_num_seqs: int, max_batch_size: int) -> None:
        self.max_num_seqs = max_num_seqs
        self._max_batch_size = max_batch_size
        self._running: OrderedDict[str, StageRequest] = OrderedDict()
        self._waiting: deque[StageRequest] = deque()

    def add(self, request: StageRequest) -> None:
        """Queue a request."""
        self._waiting.append(request)

    def remove(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored."""
        if self._running.pop(request_id, None) is None:
            self._waiting = deque(request for request in self._waiting if request.request_id != request_id)

    def schedule(self, can_run: Callable[[StageRequest], bool]) -> list[StageRequest]:
        """The next batch. A request that was served goes behind those that were not."""
        self._admit()
        batch = []
        for request in self._running.values():
            if not request.is_blocked and can_run(request):
                batch.append(request)
                if len(batch) == self._max_batch_size:
                    break
        for request in batch:
            self._running.move_to_end(request.request_id)
        return batch

    def any_runnable(self, can_run: Callable[[StageRequest], bool]) -> bool:
        """True if `schedule` would give a batch."""
        self._admit()
        return any(not request.is_blocked and can_run(request) for request in self._running.values())

    @property
    def num_running(self) -> int:
        """Requests that have a place in the engine."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a place."""
        return len(self._waiting)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.max_num_seqs:
            request = self._waiting.popleft()
            self._running[request.request_id] = request
