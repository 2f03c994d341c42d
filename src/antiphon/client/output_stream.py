"""What one request gives back: the client-lane messages of all its final stages, merged, ended exactly once.

In: what its final stages made, and failures, in any order. Out: an async iterator that ends or raises.
Does not know: sockets, HTTP, which process made an output.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from antiphon.errors import AntiphonError, HandoffTimeoutError, OverloadedError
from antiphon.messages.client import (
    AudioChunk,
    ClientData,
    ImageOutput,
    OutputEnd,
    Segment,
    TextDelta,
)


@dataclass(frozen=True)
class StageMessage:
    """One message of a final stage. OutputEnd is that stage's last one."""

    stage: str
    output: ClientData | OutputEnd


class OutputStream:
    """Owns the outputs of one request that its consumer has not taken yet, at most `max_backlog_bytes` of them.

    Iterating gives StageMessages until every final stage has sent OutputEnd, or raises the request's
    AntiphonError after the outputs that came before it. Leaving it early (`aclose`, or the end of its
    `async with` block) aborts the request in every stage.
    """

    def __init__(
        self, request_id: str, *, deadline_s: float, max_backlog_bytes: int, abort: Callable[[str, str], None]
    ) -> None:
        self.request_id = request_id
        self._deadline_s = deadline_s
        self._max_backlog_bytes = max_backlog_bytes
        self._abort = abort
        self._finals: frozenset[str] | None = None
        self._ended_finals: set[str] = set()
        self._messages: deque[StageMessage] = deque()
        self._backlog_bytes = 0
        self._error: AntiphonError | None = None
        self._ended = False
        self._has_output = False
        self._wake = asyncio.Event()

    @property
    def ended(self) -> bool:
        """True once the last message or the error is known (it may not be taken yet)."""
        return self._ended

    @property
    def has_output(self) -> bool:
        """True once a stage has said something: the consumer may have seen it."""
        return self._has_output

    @property
    def backlog_bytes(self) -> int:
        """Bytes of outputs that wait for the consumer."""
        return self._backlog_bytes

    def accept(self, finals: tuple[str, ...]) -> None:
        """The request is bound; `finals` are the stages that will each send OutputEnd."""
        self._finals = frozenset(finals)
        self._end_if_over()

    def push(self, stage: str, output: ClientData | OutputEnd) -> None:
        """Take in one message of `stage`; messages after the end, or after that stage's own, are dropped."""
        if self._ended or stage in self._ended_finals:
            return
        self._has_output = True
        self._messages.append(StageMessage(stage, output))
        self._backlog_bytes += _size_bytes(output)
        if isinstance(output, OutputEnd):
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
        self._wake.set()

    def _end_if_over(self) -> None:
        if self._finals is not None and self._finals <= self._ended_finals and not self._ended:
            self._ended = True
            self._wake.set()

    def fail(self, error: AntiphonError) -> None:
        """End the request with `error`, unless it has ended; outputs that came before it are still given."""
        if not self._ended:
            self._error, self._ended = error, True
            self._wake.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StageMessage:
        """The next message. HandoffTimeoutError if no stage says anything for `deadline_s`."""
        while not self._messages:
            if self._ended:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._wake.clear()
            try:
                async with asyncio.timeout(self._deadline_s):
                    await self._wake.wait()
            except TimeoutError:
                self._abort(self.request_id, "its stages said nothing in time")
                self.fail(
                    HandoffTimeoutError(
                        f"{self.request_id} had no output for {self._deadline_s:g} s; raise server.output_deadline_s "
                        f"or see the logs of {', '.join(sorted((self._finals or frozenset()) - self._ended_finals))}"
                    )
                )
        message = self._messages.popleft()
        self._backlog_bytes -= _size_bytes(message.output)
        return message

    async def aclose(self) -> None:
        """Abort the request in every stage, unless it has ended. Safe to call twice."""
        if not self._ended:
            self._ended = True
            self._messages.clear()
            self._backlog_bytes = 0
            self._abort(self.request_id, "its client has gone")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def _size_bytes(output: ClientData | OutputEnd) -> int:
    match output:
        case AudioChunk(pcm=data) | ImageOutput(pixels=data):
            return len(data)
        case TextDelta(text=text) | Segment(text=text):
            return len(text) + 64
        case _:
            return 64
