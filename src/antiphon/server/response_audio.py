"""The one audio encoder of one response, run where it does not hold up the event loop.

In: AudioChunks in order, a format. Out: bytes of one continuous file.
Does not know: HTTP, SSE, where the audio comes from.
"""

import asyncio
import time

from antiphon.errors import StageError
from antiphon.messages.client import AudioChunk
from antiphon.monitor.trace import Trace
from antiphon.server.audio_encode import AudioEncoder, AudioFormat, encode_whole, make_encoder
from antiphon.server.resample import ResamplingEncoder

_FREE_FORMATS = frozenset({AudioFormat.PCM, AudioFormat.WAV})
"""Formats that copy samples: a thread would cost more than the encoding."""


class ResponseAudio:
    """Owns the encoder of a streamed response, made when the first chunk tells the sample rate.

    sample_rate (Hz): that of the response; None = the chunks' own. duration_s: of the audio taken so far.
    """

    def __init__(self, format: AudioFormat, request_id: str, trace: Trace, sample_rate: int | None = None) -> None:
        self._format = format
        self._sample_rate = sample_rate
        self._request_id = request_id
        self._trace = trace
        self._encoder: AudioEncoder | None = None
        self.duration_s = 0.0

    async def encode(self, chunk: AudioChunk) -> bytes:
        """The bytes that are ready after `chunk`, maybe none."""
        if not chunk.pcm:
            return b""
        if self._encoder is None:
            self._encoder = self._make_encoder(chunk.sample_rate)
        self.duration_s += chunk.duration_s
        began_s = time.monotonic()
        if self._format in _FREE_FORMATS:
            encoded = self._encoder.encode(chunk.pcm)
        else:
            encoded = await asyncio.to_thread(self._encoder.encode, chunk.pcm)
        self._trace.add(self._request_id, "encode", began_s, time.monotonic())
        return encoded

    async def finish(self) -> bytes:
        """All that is left. StageError if there was no audio at all: an empty file would look like success."""
        if self._encoder is None:
            raise no_audio()
        if self._format in _FREE_FORMATS:
            return self._encoder.finish()
        return await asyncio.to_thread(self._encoder.finish)

    def _make_encoder(self, made_at: int) -> AudioEncoder:
        wanted = self._sample_rate or made_at
        encoder = make_encoder(self._format, wanted)
        return encoder if wanted == made_at else ResamplingEncoder(encoder, made_at, wanted)


async def encode_answer(chunks: list[AudioChunk], format: AudioFormat, text: str = "") -> bytes:
    """A finished answer as one file that knows its length. StageError, with its `text`, if there was no audio."""
    pcm = b"".join(chunk.pcm for chunk in chunks)
    if not pcm:
        raise no_audio(text)
    return await asyncio.to_thread(encode_whole, pcm, format, chunks[0].sample_rate)


def no_audio(text: str = "") -> StageError:
    """What a request that asked for audio gets if its stages ended without any; `text` is what was to be said."""
    said = f": {text!r}" if text else ""
    return StageError(
        f"there is no audio, because nothing in the text can be spoken{said}; ask again, or for text alone",
        code="no_audio",
    )
