"""Audio in: the bytes of an uploaded audio file become mono samples at the rate a model wants.

In: a whole file in any usual container, a sample rate, a longest duration. Out: float32 samples, or a RequestError.
Does not know: HTTP, models. All of it is synchronous CPU work: call it off the event loop.
"""

import io
from collections.abc import Iterator
from typing import Final

import av
import numpy as np
import numpy.typing as npt
from av.audio.stream import AudioStream
from av.container import InputContainer

from antiphon.errors import InvalidRequestError, RequestTooLargeError
from antiphon.server.demux import readable_packets

_DEMUXERS: Final = "wav,w64,aiff,au,caf,mp3,aac,loas,flac,ogg,matroska,webm,mov,mp4,amr,asf,mpegts,avi"
"""The only containers that are opened: FFmpeg's playlist formats would read other files and URLs for the client."""
_USABLE: Final = "send a wav, mp3, m4a, aac, flac, ogg, opus or webm file"
_MIN_SOURCE_RATE: Final = 1_000
_MAX_SOURCE_RATE: Final = 768_000
_MAX_SOURCE_CHANNELS: Final = 64  # FFmpeg's resampler takes no more

Samples = npt.NDArray[np.float32]


def decode_audio(data: bytes, *, sample_rate: int = 16_000, max_duration_s: float) -> Samples:
    """Decodes the first audio stream of a file, mixed to mono and resampled to `sample_rate` Hz.

    Returns float32 [num_samples] in [-1, 1]. Damaged packets are skipped: a file cut short gives what is left of it.
    Raises InvalidRequestError (param "file", code "invalid_audio") if nothing can be decoded, and
    RequestTooLargeError as soon as `max_duration_s` is passed, without decoding the rest.
    """
    if not data:
        raise _invalid("the file is empty")
    options = {"format_whitelist": _DEMUXERS, "protocol_whitelist": "none"}
    try:
        with av.open(io.BytesIO(data), "r", container_options=options, metadata_errors="replace") as container:
            pieces = _decode_pieces(container, sample_rate, max_duration_s)
    except (av.FFmpegError, ValueError) as error:
        raise _invalid("the file is not audio in a known format") from error
    samples = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
    if not samples.size:
        raise _invalid("the file holds no audio samples (it may be cut short or damaged)")
    return samples


def _invalid(problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{problem}; {_USABLE}", param="file", code="invalid_audio")


def _decode_pieces(container: InputContainer, sample_rate: int, max_duration_s: float) -> list[Samples]:
    """All samples of the first audio stream, at most `max_duration_s` of them in memory."""
    if not container.streams.audio:
        raise _invalid("the file has no audio stream")
    mixer = _MonoMixer(sample_rate)
    pieces: list[Samples] = []
    duration_s = 0.0
    for frame in _decodable_frames(container, container.streams.audio[0]):
        if not _MIN_SOURCE_RATE <= frame.sample_rate <= _MAX_SOURCE_RATE:
            raise _invalid(f"the file claims a sample rate of {frame.sample_rate} Hz")
        if frame.layout.nb_channels > _MAX_SOURCE_CHANNELS:
            raise _invalid(f"the file has {frame.layout.nb_channels} channels, more than {_MAX_SOURCE_CHANNELS}")
        duration_s += frame.samples / frame.sample_rate
        if duration_s > max_duration_s:
            raise RequestTooLargeError(
                f"the audio is longer than the limit of {max_duration_s:g} s; send it in shorter parts", param="file"
            )
        pieces += mixer.mix(frame)
    return pieces + mixer.finish()


def _decodable_frames(container: InputContainer, stream: AudioStream) -> Iterator[av.AudioFrame]:
    """Yields what can be decoded: a damaged packet is skipped."""
    for packet in readable_packets(container, stream):
        try:
            frames = packet.decode()
        except av.FFmpegError:
            continue
        yield from (frame for frame in frames if frame.samples)


class _MonoMixer:
    """Owns a resampler, and replaces it when the source changes its rate, layout or sample format.

    Mono is the mean of the channels: unlike FFmpeg's float mix it cannot clip, and it needs no known layout.
    """

    def __init__(self, sample_rate: int) -> None:
        self._sample_rate = sample_rate
        self._source: tuple[int, str, str] | None = None
        self._resampler = self._new_resampler()

    def mix(self, frame: av.AudioFrame) -> list[Samples]:
        source = (frame.sample_rate, frame.layout.name, frame.format.name)
        rest: list[Samples] = []
        if self._source is not None and source != self._source:
            rest = self.finish()
            self._resampler = self._new_resampler()
        self._source = source
        return rest + _mean_of_channels(self._resampler.resample(frame))

    def finish(self) -> list[Samples]:
        """The samples still inside the resampler's filter."""
        return _mean_of_channels(self._resampler.resample(None))

    def _new_resampler(self) -> av.AudioResampler:
        return av.AudioResampler(format="flt", rate=self._sample_rate)


def _mean_of_channels(frames: list[av.AudioFrame]) -> list[Samples]:
    """Mono samples in [-1, 1]; what is not a number becomes silence.

    `frames` are packed float32: PyAV reads past the planes of a planar frame of more than 8 channels. A resampler
    with nothing to do answers a flush with None.
    """
    pieces: list[Samples] = []
    for frame in frames:
        if frame is not None:
            channels = frame.to_ndarray().reshape(frame.samples, frame.layout.nb_channels)
            pieces.append(np.clip(np.nan_to_num(channels), -1.0, 1.0).mean(axis=1, dtype=np.float32))
    return pieces
