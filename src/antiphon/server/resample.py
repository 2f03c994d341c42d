"""One response's samples at another rate than they were made at.

In: s16le mono pcm in pieces of any size. Out: the same sound at the other rate, as it is or through an encoder.
Does not know: formats, HTTP, where the samples come from.
"""

import numpy as np
import soxr

from antiphon.server.audio_encode import AudioEncoder, SampleCutter


class Resampler:
    """Owns the state of one stream on its way from one rate (Hz) to another (soxr, HQ).

    The samples are those of resampling the whole at once: N become N * to_rate / from_rate, with no seam. Some
    milliseconds are held back until more comes or the end.
    """

    def __init__(self, from_rate: int, to_rate: int) -> None:
        self._stream = soxr.ResampleStream(from_rate, to_rate, 1, dtype="float32", quality="HQ")

    def push(self, samples: bytes, *, last: bool = False) -> np.ndarray:
        """Whole s16le samples in; [samples] int16 that are ready out."""
        pieces = np.frombuffer(samples, "<i2").astype(np.float32)  # of int16 it would make noise: dither of no seed
        resampled: np.ndarray = self._stream.resample_chunk(pieces, last=last)
        whole_steps: np.ndarray = np.clip(np.rint(resampled), -32_768, 32_767)
        return whole_steps.astype("<i2")


class ResamplingEncoder:
    """Owns a resampler in front of an encoder for `to_rate` (Hz)."""

    def __init__(self, encoder: AudioEncoder, from_rate: int, to_rate: int) -> None:
        self._encoder = encoder
        self._resampler = Resampler(from_rate, to_rate)
        self._cutter = SampleCutter()

    def encode(self, pcm: bytes) -> bytes:
        """See AudioEncoder."""
        return self._encoder.encode(self._resampler.push(self._cutter.cut(pcm)).tobytes())

    def finish(self) -> bytes:
        """See AudioEncoder."""
        return self._encoder.encode(self._resampler.push(b"", last=True).tobytes()) + self._encoder.finish()
