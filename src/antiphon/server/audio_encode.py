"""Audio out: 16-bit mono samples become the bytes of the response format a client asked for.

In: s16le mono pcm in pieces of any size, a format, a sample rate. Out: container bytes, as early as the codec allows.
Does not know: HTTP, base64, where the samples come from. All of it is synchronous CPU work: call it off the event loop.
"""

import io
import struct
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Final, Protocol, assert_never, cast

import av
import numpy as np
from av.audio.stream import AudioStream

from antiphon.errors import InvalidRequestError

BYTES_PER_SAMPLE: Final = 2
UNKNOWN_SIZE: Final = 0xFFFFFFFF
"""What a WAV header of a stream says in both of its size fields."""
_MIN_SAMPLE_RATE: Final = 8_000
_MAX_SAMPLE_RATE: Final = 192_000


class AudioFormat(StrEnum):
    """`response_format` of OpenAI's speech API and `audio.format` of its chat API."""

    MP3 = "mp3"
    OPUS = "opus"
    AAC = "aac"
    FLAC = "flac"
    WAV = "wav"
    PCM = "pcm"

    @classmethod
    def of_file_name(cls, name: str) -> "AudioFormat":
        """The format that a file name's ending names; InvalidRequestError listing the endings there are."""
        ending = name.rpartition(".")[2].lower()
        if ending not in {member.value for member in cls}:
            raise InvalidRequestError(f"{name}: the ending says no format; use one of .{', .'.join(cls)}", param="out")
        return cls(ending)

    def content_type(self, sample_rate: int) -> str:
        """The response's Content-Type; `pcm` has no header of its own, so its type says the rate and the channel."""
        match self:
            case AudioFormat.MP3:
                return "audio/mpeg"
            case AudioFormat.OPUS:
                return "audio/ogg"
            case AudioFormat.AAC:
                return "audio/aac"
            case AudioFormat.FLAC:
                return "audio/flac"
            case AudioFormat.WAV:
                return "audio/wav"
            case AudioFormat.PCM:
                return f"audio/pcm;rate={sample_rate};channels=1"
            case _:
                assert_never(self)

    def check_holds(self, sample_rate: int) -> None:
        """InvalidRequestError that lists the rates there are, if a file of this format cannot have `sample_rate`."""
        rates = _CODECS[self].sample_rates if self in _CODECS else ()
        if rates and sample_rate not in rates:
            raise InvalidRequestError(
                f"`sample_rate`: {self} holds {', '.join(map(str, rates))} Hz, not {sample_rate}; "
                "wav, flac and pcm hold every rate",
                param="sample_rate",
            )


class AudioEncoder(Protocol):
    """Encodes one response: `encode` for every piece, then `finish` once. Joining all results gives one valid file."""

    def encode(self, pcm: bytes) -> bytes:
        """Takes s16le mono samples (a piece may end inside a sample), returns the bytes that are ready, maybe none."""
        ...

    def finish(self) -> bytes:
        """Returns everything the codec and the container still hold."""
        ...


def make_encoder(format: AudioFormat, sample_rate: int, num_samples: int | None = None) -> AudioEncoder:
    """A fresh encoder for one response.

    `sample_rate` (Hz) is that of the samples that will come; a codec that lacks this rate gets them resampled.
    `num_samples`, where known, lets a WAV header tell its true size.
    Raises InvalidRequestError for a sample rate outside 8,000 to 192,000 Hz.
    """
    _check_sample_rate(sample_rate)
    match format:
        case AudioFormat.PCM:
            return _RawEncoder(header=b"")
        case AudioFormat.WAV:
            return _RawEncoder(header=_wav_header(sample_rate, num_samples), num_samples=num_samples)
        case AudioFormat.MP3 | AudioFormat.OPUS | AudioFormat.AAC | AudioFormat.FLAC:
            return _StreamEncoder(_CODECS[format], sample_rate)
        case _:
            assert_never(format)


def encode_whole(pcm: bytes, format: AudioFormat, sample_rate: int) -> bytes:
    """Encodes a complete answer of s16le mono samples; the container then also states its length, where it can.

    An mp3 carries its encoder delay and padding, so players restore exactly the samples' duration; a flac its true
    sample count and MD5. Raises InvalidRequestError as `make_encoder` does.
    """
    _check_sample_rate(sample_rate)
    whole_samples = pcm[: len(pcm) // BYTES_PER_SAMPLE * BYTES_PER_SAMPLE]
    match format:
        case AudioFormat.PCM | AudioFormat.WAV:
            encoder = make_encoder(format, sample_rate, len(whole_samples) // BYTES_PER_SAMPLE)
            return encoder.encode(whole_samples) + encoder.finish()
        case AudioFormat.MP3 | AudioFormat.OPUS | AudioFormat.AAC | AudioFormat.FLAC:
            file = io.BytesIO()
            writer = _ContainerWriter(_CODECS[format], sample_rate, file)
            writer.write(whole_samples)
            writer.close()
            return file.getvalue()
        case _:
            assert_never(format)


def _check_sample_rate(sample_rate: int) -> None:
    if not _MIN_SAMPLE_RATE <= sample_rate <= _MAX_SAMPLE_RATE:
        raise InvalidRequestError(
            f"sample_rate is {sample_rate} Hz; audio is encoded at {_MIN_SAMPLE_RATE} to {_MAX_SAMPLE_RATE} Hz",
            param="sample_rate",
        )


def _wav_header(sample_rate: int, num_samples: int | None) -> bytes:
    """The 44 bytes before the samples: RIFF, `fmt ` (integer pcm, mono, 16 bits), `data`."""
    header_bytes_after_riff_size = 36
    data_bytes = UNKNOWN_SIZE if num_samples is None else num_samples * BYTES_PER_SAMPLE
    riff_bytes = UNKNOWN_SIZE if num_samples is None else header_bytes_after_riff_size + data_bytes
    riff = struct.pack("<4sI4s", b"RIFF", riff_bytes, b"WAVE")
    bytes_per_second = sample_rate * BYTES_PER_SAMPLE
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, sample_rate, bytes_per_second, BYTES_PER_SAMPLE, 16)
    return riff + fmt + struct.pack("<4sI", b"data", data_bytes)


class SampleCutter:
    """Owns the odd byte of a piece that ended inside a sample, until the sample's other byte comes."""

    def __init__(self) -> None:
        self._rest = b""

    def cut(self, pcm: bytes) -> bytes:
        """The whole samples that are there."""
        joined = self._rest + pcm
        end = len(joined) - len(joined) % BYTES_PER_SAMPLE
        self._rest = joined[end:]
        return joined[:end]


class _RawEncoder:
    """Owns a header that goes out once; the samples follow as they are (pcm, wav)."""

    def __init__(self, header: bytes, num_samples: int | None = None) -> None:
        self._header = header
        self._num_announced = num_samples
        self._num_written = 0
        self._cutter = SampleCutter()

    def encode(self, pcm: bytes) -> bytes:
        samples = self._cutter.cut(pcm)
        self._num_written += len(samples) // BYTES_PER_SAMPLE
        header, self._header = self._header, b""
        return header + samples

    def finish(self) -> bytes:
        """Raises ValueError if the header announced another number of samples than came: a fault of the caller."""
        if self._num_announced is not None and self._num_announced != self._num_written:
            raise ValueError(
                f"the wav header announced {self._num_announced} samples but {self._num_written} were encoded; "
                "pass num_samples=None for a stream of unknown length"
            )
        return self.encode(b"")


@dataclass(frozen=True)
class _ContainerCodec:
    """What FFmpeg is asked for: a muxer, an encoder, the rates (Hz) the encoder takes; none listed means any."""

    container: str
    encoder: str
    sample_rates: tuple[int, ...] = ()
    bit_rate: int | None = None
    container_options: dict[str, str] = field(default_factory=dict)

    def nearest_rate(self, sample_rate: int) -> int:
        """The lowest rate of the encoder that loses nothing of `sample_rate`, or else its highest."""
        if not self.sample_rates:
            return sample_rate
        return min((r for r in self.sample_rates if r >= sample_rate), default=max(self.sample_rates))


_MPEG_RATES: Final = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
_OPUS_RATES: Final = (8_000, 12_000, 16_000, 24_000, 48_000)
"""What the encoder takes; every Opus file is played at 48,000 Hz."""

_CODECS: Final = {
    AudioFormat.MP3: _ContainerCodec("mp3", "libmp3lame", _MPEG_RATES, 64_000, {"id3v2_version": "0"}),
    AudioFormat.OPUS: _ContainerCodec("ogg", "libopus", _OPUS_RATES, 64_000, {"page_duration": "40000"}),  # us
    AudioFormat.AAC: _ContainerCodec("adts", "aac", _MPEG_RATES, 64_000),
    AudioFormat.FLAC: _ContainerCodec("flac", "flac", container_options={"metadata_header_padding": "0"}),
}


class _Writable(Protocol):
    """A file as PyAV sees it; one that has also `seek` and `tell` gets its header completed at the end."""

    def write(self, data: bytes, /) -> int: ...


class _ContainerWriter:
    """Owns one FFmpeg muxer and encoder that write to `file`; FFmpeg hands it every packet at once."""

    def __init__(self, codec: _ContainerCodec, sample_rate: int, file: _Writable) -> None:
        self._container = av.open(file, "w", format=codec.container, container_options=codec.container_options)
        rate = codec.nearest_rate(sample_rate)
        self._stream = cast(AudioStream, self._container.add_stream(codec.encoder, rate=rate, layout="mono"))
        if codec.bit_rate is not None:
            self._stream.bit_rate = codec.bit_rate
        self._sample_rate = sample_rate
        self._num_written = 0

    def write(self, samples: bytes) -> None:
        if not samples:
            return
        frame = av.AudioFrame.from_ndarray(np.frombuffer(samples, "<i2").reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate = self._sample_rate
        frame.time_base = Fraction(1, self._sample_rate)
        frame.pts = self._num_written
        self._num_written += frame.samples
        self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        self._container.mux(self._stream.encode(None))
        self._container.close()


class _StreamSink:
    """Owns the bytes the muxer wrote and nobody took yet; it cannot seek, as a response cannot."""

    def __init__(self) -> None:
        self._ready = bytearray()

    def write(self, data: bytes, /) -> int:
        self._ready += data
        return len(data)

    def take(self) -> bytes:
        taken = bytes(self._ready)
        self._ready.clear()
        return taken


class _StreamEncoder:
    """Owns the codec state of one streamed response (mp3, opus, aac, flac)."""

    def __init__(self, codec: _ContainerCodec, sample_rate: int) -> None:
        self._sink = _StreamSink()
        self._writer = _ContainerWriter(codec, sample_rate, self._sink)
        self._cutter = SampleCutter()

    def encode(self, pcm: bytes) -> bytes:
        self._writer.write(self._cutter.cut(pcm))
        return self._sink.take()

    def finish(self) -> bytes:
        self._writer.close()
        return self._sink.take()
