"""What one request gives back: the client-lane messages of all its final stages, merged, ended exactly once.

In: what its final stages made, and failures, in any order. Out: an async iterator that ends or raises.
Does not know: sockets, HTTP, which process made an output.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec

from antiphon.errors import AntiphonError, HandoffTimeoutError, OverloadedError
from antiphon.messages.client import ClientData, OutputEnd


class StageMessage(msgspec.Struct, frozen=True, gc=False):
    """One message of a final stage. OutputEnd is that stage's last one."""

    stage: str
    output: ClientData | OutputEnd


_MAX_TAKEN_BYTES = 16 << 10
"""Outputs that are taken at once: what is made of them waits in one piece for a client that reads slowly."""


class OutputStream:
    """Owns the outputs of one request that its consumer has not taken yet, at most `max_backlog_bytes` of them.

    Iterating gives StageMessages until every final stage has sent OutputEnd, or raises the request's
    AntiphonError after the outputs that came before it. Leaving it early (`aclose`, or the end of its
    `async with` block) aborts the request in every stage.

    is_whole: the consumer wants the answer when it is complete, so nothing is given before, and a start that has
    failed can be forgotten (`start_again`).
    """

    def __init__(
        self,
        request_id: str,
        *,
        deadline_s: float,
        max_backlog_bytes: int,
        abort: Callable[[str, str], None],
        is_whole: bool = False,
    ) -> None:
        self.request_id = request_id
        self._deadline_s = deadline_s
        self._max_backlog_bytes = max_backlog_bytes
        self._abort = abort
        self._is_whole = is_whole
        self._finals: frozenset[str] | None = None
        self._ended_finals: set[str] = set()
        self._messages: deque[StageMessage] = deque()
        self._sizes_bytes: deque[int] = deque()
        self._backlog_bytes = 0
        self._error: AntiphonError | None = None
        self._ended = False
        self._has_output = False
        self._waiter: asyncio.Future[None] | None = None
        self._waiting_since_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def ended(self) -> bool:
        """True once the last message or the error is known (it may not be taken yet)."""
        return self._ended

    @property
    def has_output(self) -> bool:
        """True once a stage has said something that the consumer may have seen."""
        return self._has_output and not self._is_whole

    @property
    def backlog_bytes(self) -> int:
        """Bytes of outputs that wait for the consumer."""
        return self._backlog_bytes

    def accept(self, finals: tuple[str, ...]) -> None:
        """The request is bound; `finals` are the stages that will each send OutputEnd."""
        self._finals = frozenset(finals)
        self._end_if_over()

    def push(self, stage: str, *outputs: ClientData | OutputEnd) -> None:
        """Take in what `stage` says, its end last; what it says after the end, or after its own, is dropped."""
        if self._ended or stage in self._ended_finals:
            return
        self._has_output = True
        self._messages += [StageMessage(stage, output) for output in outputs]
        sizes_bytes = [output.size_bytes for output in outputs]
        self._sizes_bytes += sizes_bytes
        self._backlog_bytes += sum(sizes_bytes)
        if type(outputs[-1]) is OutputEnd:
            self._ended_finals.add(stage)
            self._end_if_over()
        elif self._backlog_bytes > self._max_backlog_bytes:
            self._abort(self.request_id, "its client does not read")
            return self.fail(
                OverloadedError(
                    f"{self.request_id}: the client does not read: {self._backlog_bytes} bytes wait for it; "
                    "read faster or raise server.max_client_backlog_mib"
                )
            )
        if self._is_whole:
            self._waiting_since_s = time.monotonic()
        else:
            self._wake()

    def start_again(self) -> None:
        """Forget what the first start has said; the consumer has seen none of it (see has_output)."""
        self._messages.clear()
        self._sizes_bytes.clear()
        self._ended_finals.clear()
        self._backlog_bytes = 0

    def _end_if_over(self) -> None:
        if self._finals is not None and self._finals <= self._ended_finals and not self._ended:
            self._end()

    def _end(self) -> None:
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: AntiphonError) -> None:
        """End the request with `error`, unless it has ended; outputs that came before it are still given."""
        if not self._ended:
            self._error = error
            self._end()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StageMessage:
        """The next message. HandoffTimeoutError if no stage says anything for `deadline_s`."""
        while not self._is_given():
            if self._is_at_its_end():
                raise StopAsyncIteration
            await self._wait()
        return self._pop()

    async def take(self) -> list[StageMessage]:
        """All that has come, at least the next message, at most 16 KiB otherwise; [] once iterating would end."""
        while not self._is_given():
            if self._is_at_its_end():
                return []
            await self._wait()
        if self._backlog_bytes <= _MAX_TAKEN_BYTES:
            taken = list(self._messages)
            self._messages.clear()
            self._sizes_bytes.clear()
            self._backlog_bytes = 0
            return taken
        taken, end_bytes = [self._pop()], self._backlog_bytes - _MAX_TAKEN_BYTES
        while self._messages and self._backlog_bytes - self._sizes_bytes[0] >= end_bytes:
            taken.append(self._pop())
        return taken

    def _is_given(self) -> bool:
        """True if there are messages for the consumer now."""
        return bool(self._messages) and (self._ended or not self._is_whole)

    def _is_at_its_end(self) -> bool:
        """Where nothing is given: True after the last message. Raises what the request has failed with."""
        if self._ended and self._error is not None:
            raise self._error
        return self._ended

    def _pop(self) -> StageMessage:
        message = self._messages.popleft()
        self._backlog_bytes -= self._sizes_bytes.popleft()
        return message

    async def _wait(self) -> None:
        """Until something has come. One timer serves many waits: it looks at how long the last one has been."""
        loop = asyncio.get_running_loop()
        self._waiter, self._waiting_since_s = loop.create_future(), time.monotonic()
        if self._timer is None:
            self._timer = loop.call_later(self._deadline_s, self._look_at_the_clock)
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _look_at_the_clock(self) -> None:
        self._timer = None
        if self._waiter is None:
            return
        left_s = self._waiting_since_s + self._deadline_s - time.monotonic()
        if left_s > 0:
            self._timer = asyncio.get_running_loop().call_later(left_s, self._look_at_the_clock)
            return
        self._abort(self.request_id, "its stages said nothing in time")
        self.fail(
            HandoffTimeoutError(
                f"{self.request_id} had no output for {self._deadline_s:g} s; raise server.output_deadline_s "
                f"or see the logs of {', '.join(sorted((self._finals or frozenset()) - self._ended_finals))}"
            )
        )

    async def aclose(self) -> None:
        """Abort the request in every stage, unless it has ended. Safe to call twice."""
        self._messages.clear()
        self._sizes_bytes.clear()
        self._backlog_bytes = 0
        if not self._ended:
            self._end()
            self._abort(self.request_id, "its client has gone")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
