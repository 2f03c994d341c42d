"""One request of this process until nothing of it is left: which of its starts counts, and whether it is over.

In: what the orchestrator and the stages say of it. Out: its SubmitRequest, whether it is started again or over.
Does not know: sockets, other requests, how its input reaches a stage.
"""

import asyncio
import time
from dataclasses import dataclass, field

from antiphon.client.output_stream import OutputStream
from antiphon.errors import AntiphonError, DeadlyRequestError, ReplicaDiedError
from antiphon.messages.control import SubmitRequest
from antiphon.messages.payload import EntryPayload

_MAX_RESTARTS = 2
"""Once for a death that may be its doing, and once for one that is another's: the orchestrator tells them apart."""


@dataclass
class OpenRequest:
    """Owns a request's stream and input until every replica has released it and the stream has ended.

    accepted: done when it is bound, or will never be. epoch: the start whose outputs count. is_restarting: a replica
    has died before any output; the next start follows when what was bound has been released. submitted_s, accepted_s:
    monotonic, 0 = not yet. begun_s: when its last start was bound; ran_s: how long the one before it ran. time_limit:
    ends it when it has run too long.
    """

    stream: OutputStream
    payload: EntryPayload
    accepted: asyncio.Future[None]
    epoch: int
    client: str = ""
    num_restarts: int = 0
    is_restarting: bool = False
    is_released: bool = False
    submitted_s: float = field(default_factory=time.monotonic)
    accepted_s: float = 0.0
    begun_s: float = 0.0
    ran_s: float = 0.0
    time_limit: asyncio.TimerHandle | None = None
    _ended_s: float = field(default=0.0, init=False)

    @property
    def is_over(self) -> bool:
        """Nobody holds anything of it, but its consumer what it has not taken yet."""
        return self.is_released and self.stream.ended

    def submission(self, api_server: str) -> SubmitRequest:
        """What the orchestrator is told of this start."""
        payload = self.payload
        return SubmitRequest(
            self.stream.request_id,
            api_server,
            payload.task,
            payload.inputs,
            payload.outputs,
            payload.params,
            epoch=self.epoch,
            is_restart=self.num_restarts > 0,
            client=self.client,
            ran_s=self.ran_s,
        )

    def settle(self, error: AntiphonError | None = None) -> None:
        """It is bound, or `error` says why it will not be. Only the first word counts."""
        if self.accepted.done():
            return
        if error is None:
            self.accepted.set_result(None)
        else:
            self.accepted.set_exception(error)

    def end(self, error: AntiphonError) -> None:
        """It has failed, whether it was bound or not."""
        self.stream.fail(error)
        self.settle(error)

    def may_start_again_after(self, error: AntiphonError) -> bool:
        """True if a replica has died, not by this request's doing, and the consumer has seen nothing of this start."""
        if not isinstance(error, ReplicaDiedError) or isinstance(error, DeadlyRequestError):
            return False
        return not self.stream.has_output and not self.stream.ended and self.num_restarts < _MAX_RESTARTS

    def start_again(self, epoch: int) -> None:
        """Forget what this start has said; `epoch` is the next one's."""
        self.stream.start_again()
        self.num_restarts += 1
        self.epoch = epoch
        self.is_restarting = True
        self.ran_s = time.monotonic() - self.begun_s if self.begun_s else 0.0

    def release(self) -> bool:
        """Every replica has let go of it. True: of the start before, and the next one is to be submitted."""
        if self.is_restarting and not self.stream.ended:
            self.is_restarting = False
            return True
        self.is_released = True
        return False

    def is_overdue(self, now_s: float, release_s: float) -> bool:
        """True if it was seen here `release_s` ago that it has ended, and it is still not released."""
        if not self.stream.ended or self.is_released:
            return False
        self._ended_s = self._ended_s or now_s
        return now_s - self._ended_s >= release_s
