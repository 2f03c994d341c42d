"""Audio as realtime clients send and take it: 24 kHz pcm, or G.711 at 8 kHz.

In: a format; bytes from the client, or chunks from a stage. Out: float32 samples at the rate models hear, or bytes.
Does not know: base64, events, turns. G.711 is ITU-T's recommendation of 1988.
"""

from enum import StrEnum
from functools import cache

import numpy as np
import soxr

from antiphon.messages.client import AudioChunk
from antiphon.server.audio_encode import SampleCutter
from antiphon.server.resample import Resampler

HEARING_RATE = 16_000
_FULL_SCALE = 32_768.0
_SPEAKING_RATE, _TELEPHONE_RATE = 24_000, 8_000

Samples = np.ndarray


class WireFormat(StrEnum):
    """`audio.input.format.type` and `audio.output.format.type`."""

    PCM = "audio/pcm"
    PCMU = "audio/pcmu"
    PCMA = "audio/pcma"

    @property
    def rate(self) -> int:
        """Samples per second."""
        return _SPEAKING_RATE if self is WireFormat.PCM else _TELEPHONE_RATE


class WireInput:
    """Owns the state of one stream from the client: its resampler, and half a sample."""

    def __init__(self, format: WireFormat) -> None:
        self._format = format
        self._cutter = SampleCutter()
        self._resampler = soxr.ResampleStream(format.rate, HEARING_RATE, 1, dtype="float32", quality="HQ")

    def decode(self, data: bytes, *, last: bool = False) -> Samples:
        """[samples] float32 at 16 kHz; some milliseconds are held back until more comes or `last`."""
        resampled: Samples = self._resampler.resample_chunk(self._samples(data), last=last)
        clipped: Samples = np.clip(resampled, -1.0, 1.0)
        return clipped

    def _samples(self, data: bytes) -> Samples:
        if self._format is WireFormat.PCM:
            steps = np.frombuffer(self._cutter.cut(data), "<i2")
        else:
            steps = _g711_levels(self._format)[np.frombuffer(data, np.uint8)]
        return steps.astype(np.float32) / np.float32(_FULL_SCALE)


class WireOutput:
    """Owns the state of one response's stream to the client."""

    def __init__(self, format: WireFormat) -> None:
        self._format = format
        self._resampler: Resampler | None = None

    def encode(self, chunk: AudioChunk) -> bytes:
        """The bytes that are ready after `chunk`, maybe none."""
        if self._format is WireFormat.PCM and chunk.sample_rate == self._format.rate:
            return chunk.pcm
        if self._resampler is None:
            self._resampler = Resampler(chunk.sample_rate, self._format.rate)
        return self._bytes(self._resampler.push(chunk.pcm))

    def finish(self) -> bytes:
        """The rest."""
        if self._resampler is None:
            return b""
        return self._bytes(self._resampler.push(b"", last=True))

    def _bytes(self, samples: Samples) -> bytes:
        return samples.tobytes() if self._format is WireFormat.PCM else _g711_bytes(samples, self._format)


@cache
def _g711_levels(format: WireFormat) -> Samples:
    """[256] int16: what each byte means."""
    codes = np.arange(256, dtype=np.int32)
    if format is WireFormat.PCMU:
        codes = ~codes & 0xFF
        magnitude = ((((codes & 0x0F) << 3) + 0x84) << ((codes & 0x70) >> 4)) - 0x84
        return np.where(codes & 0x80, -magnitude, magnitude).astype(np.int16)
    codes = codes ^ 0x55
    segment, step = (codes & 0x70) >> 4, (codes & 0x0F) << 4
    magnitude = np.where(segment == 0, step + 8, (step + 0x108) << np.maximum(segment - 1, 0))
    return np.where(codes & 0x80, magnitude, -magnitude).astype(np.int16)


def _g711_bytes(samples: Samples, format: WireFormat) -> bytes:
    """Each sample as the byte whose level is nearest; silence is +0, as everywhere."""
    order, borders = _g711_order(format)
    return order[np.searchsorted(borders, samples, side="right")].tobytes()


@cache
def _g711_order(format: WireFormat) -> tuple[Samples, Samples]:
    """The bytes by rising level, and the borders between them."""
    levels = _g711_levels(format).astype(np.float32)
    order = np.argsort(levels, kind="stable")
    rising = levels[order]
    return order.astype(np.uint8), (rising[:-1] + rising[1:]) / 2
