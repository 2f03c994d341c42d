"""One audio of a text that is still being written: every sentence is spoken as soon as it is whole.

In: text in pieces, flushes, the end. Out: encoded audio of one continuous file, and word of every flush.
Does not know: WebSockets, events.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto

from antiphon.clauses import ClauseSplitter
from antiphon.client.output_stream import OutputStream
from antiphon.errors import InvalidRequestError
from antiphon.ids import RequestId, new_request_id
from antiphon.messages.client import AudioChunk, OutputEnd, Usage
from antiphon.messages.tasks import SpeechInput
from antiphon.server.context import ServerContext
from antiphon.server.request_clock import RequestClock
from antiphon.server.response_audio import ResponseAudio
from antiphon.server.schema import SpokenBody
from antiphon.server.speech import sample_rate_of

_MAX_OPEN = 2
"""Sentences in the stages at once: one is given out while the next one is made."""
_Submitting = asyncio.Task[OutputStream]


class _Mark(Enum):
    FLUSH = auto()
    END = auto()


class StreamedSpeech:
    """Owns the text that is not spoken yet, the requests that speak the sentences in turn, and the one encoder.

    client: whose turn it is when requests wait. clock: of this audio, from its first text on. give: takes encoded
    bytes, never none; it may wait. flushed: called when all text before a flush has been given. usage, duration_s: of
    what has been given so far.
    """

    def __init__(
        self,
        context: ServerContext,
        wishes: SpokenBody,
        client: str,
        clock: RequestClock,
        give: Callable[[bytes], Awaitable[None]],
        flushed: Callable[[], None],
    ) -> None:
        self.request_id: RequestId = new_request_id()
        self.usage = Usage()
        self._context = context
        self._wishes = wishes
        self._client = client
        self._clock = clock
        self._give = give
        self._flushed = flushed
        sample_rate = sample_rate_of(wishes, context.client.pipeline)
        self._audio = ResponseAudio(wishes.response_format, self.request_id, context.client.trace, sample_rate)
        self._splitter = ClauseSplitter()
        self._num_chars = 0
        self._num_sentences = 0
        self._waiting: deque[str | _Mark] = deque()
        self._started: deque[_Submitting | _Mark] = deque()
        self._num_open = 0
        self._has_started = asyncio.Event()

    @property
    def duration_s(self) -> float:
        """Seconds of audio that were given out."""
        return self._audio.duration_s

    def append(self, text: str) -> None:
        """More text. InvalidRequestError, and none of it is taken, if that makes it longer than one text may be."""
        limit = self._context.settings.max_text_chars
        if self._num_chars + len(text) > limit:
            raise InvalidRequestError(
                f"`text`: {self._num_chars} characters have come, and {len(text)} more are over the limit of {limit} "
                "for one audio (server.max_text_chars); send input_text.done and begin the next",
                param="text",
                code="string_above_max_length",
            )
        self._num_chars += len(text)
        self._take(self._splitter.push(text))

    def flush(self) -> None:
        """Speak what there is as if the sentence ended here. Flushes without a text between them are one."""
        self._take(self._splitter.finish())
        last = (self._waiting or self._started or (None,))[-1]
        if last is not _Mark.FLUSH:
            self._take([_Mark.FLUSH])

    def finish(self) -> None:
        """No text comes any more."""
        self._take([*self._splitter.finish(), _Mark.END])

    async def run(self) -> None:
        """Speak until the end of the text. Raises the AntiphonError of the sentence that failed; then all is over."""
        try:
            while (item := await self._next()) is not _Mark.END:
                if item is _Mark.FLUSH:
                    self._flushed()
                elif isinstance(item, asyncio.Task):
                    await self._speak(item)
            if not self._audio.duration_s:
                raise InvalidRequestError("the text has nothing to speak", param="text", code="no_audio")
            if rest := await self._audio.finish():
                await self._send(rest)
            self._clock.complete()
            self._clock.last_byte()
        finally:
            await self._drop()

    async def _next(self) -> _Submitting | _Mark:
        while not self._started:
            self._has_started.clear()
            await self._has_started.wait()
        return self._started.popleft()

    def _take(self, pieces: Sequence[str | _Mark]) -> None:
        self._waiting.extend(pieces)
        self._start()

    def _start(self) -> None:
        """Give the stages as many sentences as may be open."""
        while self._waiting:
            piece = self._waiting[0]
            if isinstance(piece, _Mark):
                self._started.append(piece)
            elif self._num_open < _MAX_OPEN:
                self._num_open += 1
                self._started.append(asyncio.create_task(self._submit(piece)))
            else:
                break
            self._waiting.popleft()
            self._has_started.set()

    async def _submit(self, sentence: str) -> OutputStream:
        wishes, seed = self._wishes, self._wishes.seed
        number, self._num_sentences = self._num_sentences, self._num_sentences + 1
        speech = SpeechInput(
            text=sentence,
            voice=wishes.voice,
            speed=wishes.speed,
            language=wishes.language,
            seed=None if seed is None else (seed + number) % 2**32,
        )
        request_id = self.request_id if number == 0 else new_request_id()
        return await self._context.client.submit(speech, request_id=request_id, client=self._client)

    async def _speak(self, submitting: _Submitting) -> None:
        try:
            async with await submitting as stream:
                await self._play(stream)
        except InvalidRequestError as error:
            if error.param != "input":
                raise
            # the voice finds nothing to pronounce in this one sentence, say because of its script
        self._num_open -= 1
        self._start()

    async def _play(self, stream: OutputStream) -> None:
        async for message in stream:
            match message.output:
                case AudioChunk() as chunk:
                    self._clock.saw_audio(chunk)
                    if encoded := await self._audio.encode(chunk):
                        await self._send(encoded)
                case OutputEnd(usage=usage):
                    self.usage = _sum(self.usage, usage)
                case _:
                    pass  # a pipeline may also give text; this API has no place for it

    async def _send(self, encoded: bytes) -> None:
        await self._give(encoded)
        self._clock.sent_audio()

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
