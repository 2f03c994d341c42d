"""The scheduler of the generation engine: which requests are in the next batch.

In: jobs that come and go. Out: a batch of at most max_batch_size, round-robin among those that can run.
Does not know: models or outputs.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from antiphon.stage.request import StageRequest


@dataclass(slots=True)
class Job:
    """A request in the engine."""

    request: StageRequest


J = TypeVar("J", bound=Job)


class GenerationScheduler(Generic[J]):
    """Owns two queues: `running` (at most max_num_seqs jobs, in the order they were served) and `waiting`.

    can_run: whether a step would do something for a job whose request is not blocked.
    """

    def __init__(self, *, max_num_seqs: int, max_batch_size: int) -> None:
        self.max_num_seqs = max_num_seqs
        self._max_batch_size = max_batch_size
        self._running: OrderedDict[str, J] = OrderedDict()
        self._waiting: deque[J] = deque()

    def add(self, job: J) -> None:
        """Queue a job."""
        self._waiting.append(job)

    def remove(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored."""
        if self._running.pop(request_id, None) is None:
            self._waiting = deque(job for job in self._waiting if job.request.request_id != request_id)

    def schedule(self, can_run: Callable[[J], bool]) -> list[J]:
        """The next batch. A job that was served goes behind those that were not."""
        self._admit()
        batch = []
        for job in self._running.values():
            if not job.request.is_blocked and can_run(job):
                batch.append(job)
                if len(batch) == self._max_batch_size:
                    break
        if len(batch) < len(self._running):
            for job in batch:
                self._running.move_to_end(job.request.request_id)
        return batch

    def any_runnable(self, can_run: Callable[[J], bool]) -> bool:
        """True if `schedule` would give a batch."""
        self._admit()
        for job in self._running.values():  # noqa: SIM110 - a generator here is a third of what a step of one costs
            if not job.request.is_blocked and can_run(job):
                return True
        return False

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
            job = self._waiting.popleft()
            self._running[job.request.request_id] = job
