"""What has come of one streamed answer: times and amounts, kept as cheaply as they come.

In: pieces of an HTTP body and the time they came. Out: the figures of a Record. Does not know: sockets, other requests.
"""

import base64
import zlib
from dataclasses import dataclass, field

import msgspec

_SAMPLE_BYTES = 2


class _Audio(msgspec.Struct, frozen=True):
    data: str | None = None


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    audio: _Audio | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta = _Delta()


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Error(msgspec.Struct, frozen=True):
    message: str = ""


class _Event(msgspec.Struct, frozen=True):
    """What is read of an event of a chat; everything else in it is skipped."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Event).decode


@dataclass
class Answer:
    """Owns what has come so far. `is_complete`: the answer has said that it is whole."""

    sample_rate: int
    sums_audio: bool = False
    text_s: list[float] = field(default_factory=list)
    audio_s: list[float] = field(default_factory=list)
    audio_durations_s: list[float] = field(default_factory=list)
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    text_crc32: int = 0
    pcm_crc32: int = 0
    is_complete: bool = False
    error: str = ""

    def add_text(self, text: str, now_s: float) -> None:
        """A delta of text has come."""
        self.text_s.append(now_s)
        self.text_crc32 = zlib.crc32(text.encode(), self.text_crc32)

    def add_pcm(self, num_bytes: int, now_s: float) -> None:
        """So many bytes of s16le have come."""
        self.audio_s.append(now_s)
        self.audio_durations_s.append(num_bytes / _SAMPLE_BYTES / self.sample_rate)

    def sum_pcm(self, pcm: bytes) -> None:
        """Take samples into the checksum."""
        self.pcm_crc32 = zlib.crc32(pcm, self.pcm_crc32)


class SpeechBody:
    """Owns nothing: the body of a speech is its samples."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def feed(self, data: bytes, now_s: float) -> None:
        """Samples have come."""
        self._answer.add_pcm(len(data), now_s)
        if self._answer.sums_audio:
            self._answer.sum_pcm(data)

    def close(self) -> None:
        """The body has ended as HTTP says; there is no other sign."""
        self._answer.is_complete = True


class ChatBody:
    """Owns the bytes of the event that is not complete."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._rest = b""

    def feed(self, data: bytes, now_s: float) -> None:
        """Read the events that are complete now."""
        joined = self._rest + data if self._rest else data
        *events, self._rest = joined.split(b"\n\n")
        for event in events:
            self._read(event, now_s)

    def close(self) -> None:
        """The body has ended: `[DONE]` has come, or something is missing."""

    def _read(self, event: bytes, now_s: float) -> None:
        start = event.find(b"data: ")
        if start < 0:
            return  # a comment that keeps the connection alive
        data = event[start + 6 :]
        if data.startswith(b"[DONE]"):
            self._answer.is_complete = True
            return
        self._take(_decode(data), now_s)

    def _take(self, event: _Event, now_s: float) -> None:
        answer = self._answer
        if event.error is not None:
            answer.error = event.error.message
        if event.usage is not None:
            answer.num_input_tokens = event.usage.prompt_tokens
            answer.num_output_tokens = event.usage.completion_tokens
        for choice in event.choices:
            if choice.delta.content:
                answer.add_text(choice.delta.content, now_s)
            audio = choice.delta.audio
            if audio is not None and audio.data:
                encoded = audio.data
                answer.add_pcm(len(encoded) * 3 // 4 - encoded.count("=", -2), now_s)
                if answer.sums_audio:
                    answer.sum_pcm(base64.b64decode(encoded))
