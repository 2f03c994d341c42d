"""The parts of one text, spoken one after the other by requests of their own; what is not read is not made.

In: texts in order, and marks between them. Out: their audio in the same order, and the marks.
Does not know: where a text is cut, encoders, HTTP.
"""

import asyncio
import dataclasses
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from enum import Enum, auto

from antiphon.client.engine_client import EngineClient
from antiphon.client.output_stream import OutputStream
from antiphon.errors import InvalidRequestError, OverloadedError
from antiphon.ids import RequestId, part_id
from antiphon.messages.client import AudioChunk, OutputEnd, Usage
from antiphon.messages.params import part_seed
from antiphon.messages.tasks import SpeechInput

_MAX_OPEN = 2
"""Parts in the stages at once: one is given out while the next one is made."""
_PATIENCE_S = 60.0
_Submitting = asyncio.Task[OutputStream]


class Mark(Enum):
    """What stands between parts. FLUSH: all that was added before it has been given. END: nothing comes any more."""

    FLUSH = auto()
    END = auto()


class SpokenParts:
    """Owns the parts that are not spoken yet, and the requests that speak them.

    speech: how each part is spoken. The first has its seed, the next the seed + 1, and so on. usage: of the parts that
    have been spoken. began_s: see EngineClient.submit.

    A part in which the voice finds nothing to pronounce is left out; unspeakable: what the first of them was refused
    with, as an error about `param`; also if there was no part at all. A part after the first that finds no place waits
    for one, up to a minute: the client hears this text already, and cannot ask for the rest of it.
    """

    def __init__(
        self,
        client: EngineClient,
        speech: SpeechInput,
        request_id: RequestId,
        *,
        caller: str,
        began_s: float | None = None,
        param: str = "input",
    ) -> None:
        self.usage = Usage()
        self.unspeakable: InvalidRequestError | None = None
        self._client = client
        self._speech = speech
        self._request_id = request_id
        self._caller = caller
        self._began_s = began_s
        self._param = param
        self._num_parts = 0
        self._waiting: deque[str | Mark] = deque()
        self._started: deque[_Submitting | Mark] = deque()
        self._num_open = 0
        self._has_started = asyncio.Event()

    def add(self, *parts: str | Mark) -> None:
        """More to speak. Flushes without a part between them are one."""
        for part in parts:
            last = (self._waiting or self._started or (None,))[-1]
            if part is not Mark.FLUSH or last is not Mark.FLUSH:
                self._waiting.append(part)
        self._start()

    async def give(self) -> AsyncGenerator[AudioChunk | Mark, None]:
        """Audio and flushes until END; raises the AntiphonError of the part that failed. Closing it aborts the rest."""
        try:
            while (item := await self._first()) is not Mark.END:
                if isinstance(item, Mark):
                    self._started.popleft()
                    yield item
                    continue
                async with aclosing(self._speak()) as chunks:
                    async for chunk in chunks:
                        yield chunk
                self._num_open -= 1
                self._start()
            if not self._num_parts:
                self._leave_out(InvalidRequestError("there is no word in the text; send some", code="no_audio"))
        finally:
            await self._drop()

    async def _speak(self) -> AsyncGenerator[AudioChunk, None]:
        try:
            async with self._take_submitted() as stream:
                async for message in stream:
                    match message.output:
                        case AudioChunk() as chunk:
                            yield chunk
                        case OutputEnd(usage=usage):
                            self.usage = _sum(self.usage, usage)
                        case _:
                            pass  # a pipeline may also give text; speech has no place for it
        except InvalidRequestError as error:
            if error.param != "input":
                raise
            self._leave_out(error)

    def _leave_out(self, error: InvalidRequestError) -> None:
        if self.unspeakable is None:
            self.unspeakable = InvalidRequestError(error.message, param=self._param, code=error.code)

    async def _first(self) -> _Submitting | Mark:
        """What is to be given next, submitted; it stays where `_drop` finds it, however this is interrupted."""
        while not self._started:
            self._has_started.clear()
            await self._has_started.wait()
        first = self._started[0]
        if isinstance(first, asyncio.Task):
            await asyncio.wait([first])
        return first

    def _take_submitted(self) -> OutputStream:
        submitted = self._started.popleft()
        assert isinstance(submitted, asyncio.Task), "a mark is no part"
        return submitted.result()

    def _start(self) -> None:
        """Give the stages as many parts as may be open."""
        while self._waiting:
            part = self._waiting[0]
            if isinstance(part, Mark):
                self._started.append(part)
            elif self._num_open < _MAX_OPEN:
                self._num_open += 1
                self._started.append(asyncio.create_task(self._submit(part, self._num_parts)))
                self._num_parts += 1
            else:
                break
            self._waiting.popleft()
            self._has_started.set()

    async def _submit(self, text: str, number: int) -> OutputStream:
        seed, request_id = part_seed(self._speech.seed, number), part_id(self._request_id, number)
        part = dataclasses.replace(self._speech, text=text, seed=seed, continues=number > 0)
        ends_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return await self._client.submit(
                    part, request_id=request_id, client=self._caller, began_s=self._began_s
                )
            except OverloadedError as error:
                has_time = time.monotonic() + error.retry_after_s < ends_s
                if number == 0 or error.code != OverloadedError.default_code or not has_time:
                    raise
                await asyncio.sleep(error.retry_after_s)

    async def _drop(self) -> None:
        """Abort what was started and not spoken. Waits for nothing: this task may be cancelled here, too."""
        for item in self._started:
            if not isinstance(item, asyncio.Task):
                continue
            if not item.done():
                item.cancel()  # `submit` aborts
            elif item.exception() is None:
                await item.result().aclose()


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(
        one.num_input_tokens + other.num_input_tokens,
        one.num_output_tokens + other.num_output_tokens,
        one.num_samples + other.num_samples,
    )
