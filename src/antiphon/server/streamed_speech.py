"""One audio of a text that is still being written: every sentence is spoken as soon as it is whole.

In: text in pieces, flushes, the end. Out: encoded audio of one continuous file, and word of every flush.
Does not know: WebSockets, events.
"""

from collections.abc import Awaitable, Callable
from contextlib import aclosing

from antiphon.clauses import ClauseSplitter
from antiphon.errors import InvalidRequestError
from antiphon.ids import RequestId, new_request_id
from antiphon.messages.client import Usage
from antiphon.server.context import ServerContext
from antiphon.server.request_clock import RequestClock
from antiphon.server.response_audio import ResponseAudio
from antiphon.server.schema import SpokenBody
from antiphon.server.speech import sample_rate_of
from antiphon.server.spoken_file import spoken_file
from antiphon.server.spoken_parts import Mark, SpokenParts


class StreamedSpeech:
    """Owns the text of which no sentence is whole yet, its sentences that are being spoken, and the one encoder.

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
        self._max_text_chars = context.settings.max_text_chars
        self._clock = clock
        self._give = give
        self._flushed = flushed
        sample_rate = sample_rate_of(wishes, context.client.pipeline)
        self._audio = ResponseAudio(wishes.response_format, self.request_id, context.client.trace, sample_rate)
        self._splitter = ClauseSplitter()
        self._num_chars = 0
        self._parts = SpokenParts(context.client, wishes.speech(""), self.request_id, caller=client, param="text")

    @property
    def usage(self) -> Usage:
        """What the sentences have come to."""
        return self._parts.usage

    @property
    def duration_s(self) -> float:
        """Seconds of audio that were given out."""
        return self._audio.duration_s

    def append(self, text: str) -> None:
        """More text. InvalidRequestError, and none of it is taken, if that makes it longer than one text may be."""
        limit = self._max_text_chars
        if self._num_chars + len(text) > limit:
            raise InvalidRequestError(
                f"`text`: {self._num_chars} characters have come, and {len(text)} more are over the limit of {limit} "
                "for one audio (server.max_text_chars); send input_text.done and begin the next",
                param="text",
                code="string_above_max_length",
            )
        self._num_chars += len(text)
        self._parts.add(*self._splitter.push(text))

    def flush(self) -> None:
        """Speak what there is as if the sentence ended here. Flushes without a text between them are one."""
        self._parts.add(*self._splitter.finish(), Mark.FLUSH)

    def finish(self) -> None:
        """No text comes any more."""
        self._parts.add(*self._splitter.finish(), Mark.END)

    async def run(self) -> None:
        """Speak until the end of the text. Raises the AntiphonError of the sentence that failed; then all is over."""
        async with aclosing(spoken_file(self._parts, self._audio, self._clock)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Mark):
                    self._flushed()
                else:
                    await self._give(piece)
        self._clock.last_byte()
