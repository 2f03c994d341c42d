"""One answer to a chat request, as its stages say it: collected whole, or written as chunks.

In: messages of the final stages. Out: a choice of a completion, or events. Does not know: other answers, HTTP.
"""

from antiphon.client.output_stream import StageMessage
from antiphon.messages.client import AudioChunk, CalledTool, OutputEnd, TextDelta, TokenDelta, TokenLogprob
from antiphon.monitor.trace import Trace
from antiphon.server.chat_answer import AnswerHead, ChunkWriter, choice_row
from antiphon.server.chat_schema import ChatRequest
from antiphon.server.json_object import Json
from antiphon.server.request_clock import RequestClock
from antiphon.server.response_audio import ResponseAudio, encode_answer
from antiphon.server.sse import Base64Pieces


class WholeChoice:
    """Owns what an answer has said so far. end: the text stage's, once that has come."""

    def __init__(self, index: int, body: ChatRequest, head: AnswerHead, text_stage: str) -> None:
        self.end = OutputEnd()
        self._index = index
        self._body = body
        self._head = head
        self._text_stage = text_stage
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._calls: list[CalledTool] = []
        self._chunks: list[AudioChunk] = []

    def add(self, messages: list[StageMessage], clock: RequestClock | None) -> None:
        """More of it; `clock` observes the audio."""
        for message in messages:
            match message.output:
                case TextDelta(text=text, logprobs=logprobs):
                    self._texts.append(text)
                    self._logprobs += logprobs
                case CalledTool() as call:
                    self._calls.append(call)
                case AudioChunk() as chunk:
                    self._chunks.append(chunk)
                    if clock is not None:
                        clock.saw_audio(chunk)
                case OutputEnd() as last if message.stage == self._text_stage:
                    self.end = last
                case _:
                    pass  # another stage's end

    async def row(self) -> Json:
        """The choice. StageError if it was to be spoken and there is no audio: calls of tools alone need none."""
        text, body = "".join(self._texts), self._body
        is_spoken = body.audio_out and bool(self._chunks or not self._calls)
        audio = await encode_answer(self._chunks, body.audio_format, text) if is_spoken else None
        logprobs = self._logprobs if body.logprobs else None
        return choice_row(self._head, self._index, text, audio, logprobs, self._calls, self.end.finish_reason)


class StreamedChoice:
    """Owns one answer's audio encoder and what its stream has said. `clock` observes it, if it is the one observed."""

    def __init__(
        self, index: int, body: ChatRequest, head: AnswerHead, text_stage: str, clock: RequestClock | None, trace: Trace
    ) -> None:
        self.end = OutputEnd()
        include_usage = body.stream_options.include_usage
        self.writer = ChunkWriter(head, index, audio_out=body.audio_out, include_usage=include_usage)
        self._audio_out = body.audio_out
        self._audio = ResponseAudio(body.audio_format, head.request_id, trace)
        self._joiner = Base64Pieces()
        self._text_stage = text_stage
        self._clock = clock

    async def write(self, messages: list[StageMessage], written: list[bytes]) -> None:
        """The events of what has come, behind those in `written`."""
        writer = self.writer
        for message in messages:
            match message.output:
                case TextDelta(text=text, logprobs=logprobs):
                    if self._clock is not None:
                        self._clock.saw_text()
                    written.append(writer.text(text) if not logprobs else writer.scored_text(text, logprobs))
                case TokenDelta():
                    pass
                case CalledTool() as call:
                    written.append(writer.tool_call(call))
                case AudioChunk() as chunk:
                    if self._clock is not None:
                        self._clock.saw_audio(chunk)
                    self._write_audio(self._joiner.encode(await self._audio.encode(chunk)), written)
                case OutputEnd() as last if message.stage == self._text_stage:
                    self.end = last
                case _:
                    pass  # another stage's end

    async def finish(self, written: list[bytes]) -> None:
        """The last of the audio, and why the text ended. StageError as WholeChoice.row's."""
        writer = self.writer
        if self._audio_out and not (writer.num_calls and not self._audio.duration_s):
            self._write_audio(self._joiner.encode(await self._audio.finish()) + self._joiner.finish(), written)
            written.append(writer.audio_end())
        written.append(writer.finish(self.end.finish_reason))

    def _write_audio(self, encoded: str, written: list[bytes]) -> None:
        if not encoded:
            return
        if self._clock is not None:
            self._clock.sent_audio()
        written.append(self.writer.audio(encoded))
