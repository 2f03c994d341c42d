"""Audio encoding and decoding. In: tones and bad bytes. Out: durations, frequencies, exact samples, error classes.

Decodes encoder output with PyAV directly, so that an error of our decoder cannot hide one of our encoder.
Does not know: HTTP.
"""

import contextlib
import io
import struct
import wave
from typing import cast

import av
import numpy as np
import numpy.typing as npt
import pytest
from av.audio.stream import AudioStream
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.errors import InvalidRequestError, RequestTooLargeError
from antiphon.server import audio_decode
from antiphon.server.audio_decode import decode_audio
from antiphon.server.audio_encode import AudioFormat, encode_whole, make_encoder

RATE = 24_000
NUM_SAMPLES = round(2.345 * RATE)
FIRST_HZ, LAST_HZ = 440.0, 1_500.0
# A codec without a length field (mp3 and ADTS streams) also plays its encoder delay: LAME 1,105 samples, AAC 1,024.
FRAME_SAMPLES = {AudioFormat.MP3: 576, AudioFormat.AAC: 1_024, AudioFormat.OPUS: 480, AudioFormat.FLAC: 1}
DELAY_SAMPLES = {AudioFormat.MP3: 1_105, AudioFormat.AAC: 1_024, AudioFormat.OPUS: 0, AudioFormat.FLAC: 0}
COMPRESSED = tuple(FRAME_SAMPLES)
LOSSLESS = (AudioFormat.WAV, AudioFormat.FLAC)


def two_tones(num_samples: int = NUM_SAMPLES, rate: int = RATE) -> bytes:
    """One tone over the first half, another over the second, up to the very last sample."""
    t = np.arange(num_samples) / rate
    hz = np.where(np.arange(num_samples) < num_samples // 2, FIRST_HZ, LAST_HZ)
    return (12_000 * np.sin(2 * np.pi * hz * t)).astype("<i2").tobytes()


def encode_in_pieces(format: AudioFormat, pcm: bytes, rate: int = RATE, num_samples: int | None = None) -> bytes:
    """Pieces of uneven and odd sizes, an empty one among them."""
    encoder = make_encoder(format, rate, num_samples)
    sizes, encoded, start, turn = (1, 4_801, 0, 333, 9_600, 2, 7), b"", 0, 0
    while start < len(pcm):
        size = sizes[turn % len(sizes)]
        encoded += encoder.encode(pcm[start : start + size])
        start, turn = start + size, turn + 1
    return encoded + encoder.finish()


def av_decode(data: bytes) -> tuple[npt.NDArray[np.float64], int]:
    """float samples [num_samples] and the file's sample rate, as PyAV reads them."""
    with av.open(io.BytesIO(data), "r") as container:
        rate = container.streams.audio[0].rate
        frames = [frame.to_ndarray().reshape(-1) for frame in container.decode(audio=0)]
    samples = np.concatenate(frames)
    return samples.astype(np.float64) / (32_768.0 if samples.dtype == np.int16 else 1.0), rate


def loudness_at(samples: npt.NDArray[np.float64], rate: int, hz: float) -> float:
    """Amplitude of one frequency in `samples`."""
    t = np.arange(len(samples)) / rate
    return float(2 * abs(np.mean(samples * np.exp(-2j * np.pi * hz * t))))


def as_int16(samples: npt.NDArray[np.float64]) -> bytes:
    return np.round(samples * 32_768).astype("<i2").tobytes()


def wav_file(samples: npt.NDArray[np.generic], rate: int, channels: int, tag: int = 1) -> bytes:
    data, width = samples.tobytes(), samples.dtype.itemsize
    fmt = struct.pack("<HHIIHH", tag, channels, rate, rate * channels * width, channels * width, 8 * width)
    body = b"WAVEfmt " + struct.pack("<I", 16) + fmt + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize("format", COMPRESSED)
def test_a_stream_in_uneven_pieces_decodes_to_the_duration_it_was_made_from(format: AudioFormat) -> None:
    samples, rate = av_decode(encode_in_pieces(format, two_tones()))
    num_extra = len(samples) * RATE / rate - NUM_SAMPLES
    assert 0 <= num_extra <= DELAY_SAMPLES[format] + FRAME_SAMPLES[format]


@pytest.mark.parametrize("format", [AudioFormat.MP3, AudioFormat.OPUS, AudioFormat.FLAC])
def test_a_whole_answer_decodes_to_exactly_its_duration(format: AudioFormat) -> None:
    samples, rate = av_decode(encode_whole(two_tones(), format, RATE))
    assert len(samples) == NUM_SAMPLES * rate // RATE


@pytest.mark.parametrize("format", [*COMPRESSED, AudioFormat.WAV])
@pytest.mark.parametrize("whole", [False, True])
def test_the_last_100_ms_still_sound(format: AudioFormat, whole: bool) -> None:
    pcm = two_tones()
    encoded = encode_whole(pcm, format, RATE) if whole else encode_in_pieces(format, pcm)
    samples, rate = av_decode(encoded)
    delay = 0 if whole and format is AudioFormat.MP3 else DELAY_SAMPLES.get(format, 0)
    end = (delay + NUM_SAMPLES) * rate // RATE
    last = samples[end - rate // 10 : end]
    assert loudness_at(last, rate, LAST_HZ) == pytest.approx(12_000 / 32_768, rel=0.1)
    assert loudness_at(last[-rate // 50 :], rate, LAST_HZ) == pytest.approx(12_000 / 32_768, rel=0.2)
    assert loudness_at(last, rate, FIRST_HZ) < 0.02


@pytest.mark.parametrize("format", LOSSLESS)
def test_lossless_streams_are_bit_exact(format: AudioFormat) -> None:
    samples, rate = av_decode(encode_in_pieces(format, two_tones()))
    assert (rate, as_int16(samples)) == (RATE, two_tones())


@pytest.mark.parametrize("format", LOSSLESS)
def test_lossless_whole_answers_are_bit_exact(format: AudioFormat) -> None:
    samples, rate = av_decode(encode_whole(two_tones(), format, RATE))
    assert (rate, as_int16(samples)) == (RATE, two_tones())


def test_pcm_is_the_samples_themselves_and_every_piece_ends_on_a_sample() -> None:
    encoder = make_encoder(AudioFormat.PCM, RATE)
    assert [encoder.encode(p) for p in (b"a", b"bc", b"d", b"", b"e")] == [b"", b"ab", b"cd", b"", b""]
    assert encode_in_pieces(AudioFormat.PCM, two_tones()) == two_tones()
    assert encode_whole(two_tones(), AudioFormat.PCM, RATE) == two_tones()


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 48_000, 96_000])
@pytest.mark.parametrize("format", COMPRESSED)
def test_every_usual_sample_rate_keeps_pitch_and_duration(format: AudioFormat, rate: int) -> None:
    samples, file_rate = av_decode(encode_in_pieces(format, two_tones(rate, rate), rate))
    assert 0.999 <= len(samples) / file_rate < 1.4
    assert loudness_at(samples[file_rate // 5 : file_rate * 2 // 5], file_rate, FIRST_HZ) > 0.3


def test_a_wav_of_known_size_tells_its_true_sizes() -> None:
    encoded = encode_in_pieces(AudioFormat.WAV, two_tones(), num_samples=NUM_SAMPLES)
    num_bytes = 2 * NUM_SAMPLES
    assert encoded[:44] == struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", 36 + num_bytes, b"WAVE", b"fmt ", 16, 1, 1, RATE, 2 * RATE, 2, 16, b"data", num_bytes),
    )
    with wave.open(io.BytesIO(encoded)) as file:
        assert file.getparams()[:4] == (1, 2, RATE, NUM_SAMPLES)
        assert file.readframes(NUM_SAMPLES) == two_tones()
    assert encode_whole(two_tones(), AudioFormat.WAV, RATE) == encoded


def test_a_wav_stream_has_one_header_of_unknown_size_at_its_start() -> None:
    encoder = make_encoder(AudioFormat.WAV, RATE)
    first = encoder.encode(b"")
    assert len(first) == 44
    assert (first[:4], first[4:8], first[36:40], first[40:]) == (b"RIFF", b"\xff" * 4, b"data", b"\xff" * 4)
    assert encoder.encode(b"abcd") + encoder.finish() == b"abcd"


def test_a_wav_that_got_fewer_samples_than_announced_says_so() -> None:
    encoder = make_encoder(AudioFormat.WAV, RATE, num_samples=10)
    encoder.encode(b"\0" * 18)
    with pytest.raises(ValueError, match="announced 10 samples but 9"):
        encoder.finish()


@pytest.mark.parametrize("format", COMPRESSED)
def test_after_200_ms_of_samples_playable_audio_has_come_out(format: AudioFormat) -> None:
    encoder = make_encoder(format, RATE)
    pcm = two_tones()
    early = b"".join(encoder.encode(pcm[start : start + 960]) for start in range(0, RATE // 5 * 2, 960))
    samples, rate = av_decode(early)
    assert len(samples) >= rate // 20
    assert np.abs(samples).max() > 0.1


@pytest.mark.parametrize("rate", [0, -1, 7_999, 192_001])
def test_a_sample_rate_out_of_range_names_the_range(rate: int) -> None:
    with pytest.raises(InvalidRequestError, match="8000 to 192000 Hz") as raised:
        make_encoder(AudioFormat.MP3, rate)
    assert raised.value.param == "sample_rate"


def test_content_types_are_those_of_the_containers() -> None:
    assert {format.value: format.content_type(16_000) for format in AudioFormat} == {
        "mp3": "audio/mpeg",
        "opus": "audio/ogg",
        "aac": "audio/aac",
        "flac": "audio/flac",
        "wav": "audio/wav",
        "pcm": "audio/pcm;rate=16000;channels=1",
    }


@pytest.mark.parametrize("format", [*COMPRESSED, AudioFormat.WAV])
def test_decode_audio_reads_every_format_we_write(format: AudioFormat) -> None:
    samples = decode_audio(encode_in_pieces(format, two_tones()), max_duration_s=10)
    assert samples.dtype == np.float32 and samples.ndim == 1
    assert 2.344 <= len(samples) / 16_000 <= 2.345 + 0.09
    assert loudness_at(samples[8_000:9_600].astype(float), 16_000, FIRST_HZ) == pytest.approx(0.366, rel=0.1)


def test_decode_audio_without_resampling_returns_the_samples_as_they_are() -> None:
    samples = decode_audio(encode_whole(two_tones(), AudioFormat.WAV, RATE), sample_rate=RATE, max_duration_s=10)
    assert as_int16(samples.astype(float)) == two_tones()


@pytest.mark.parametrize(("container", "codec"), [("webm", "libopus"), ("mp4", "aac"), ("ogg", "libopus")])
def test_decode_audio_reads_what_browsers_and_phones_record(container: str, codec: str) -> None:
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = cast(AudioStream, output.add_stream(codec, rate=48_000, layout="stereo"))
        both = np.repeat(np.frombuffer(two_tones(48_000, 48_000), "<i2"), 2)
        frame = av.AudioFrame.from_ndarray(both.reshape(1, -1), format="s16", layout="stereo")
        frame.sample_rate = 48_000
        output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    samples = decode_audio(file.getvalue(), max_duration_s=10)
    assert len(samples) / 16_000 == pytest.approx(1.0, abs=0.03)
    assert loudness_at(samples[4_000:6_400].astype(float), 16_000, FIRST_HZ) == pytest.approx(0.366, rel=0.1)


@pytest.mark.parametrize("channels", [1, 2, 6, 9, 24])
def test_mono_is_the_mean_of_the_channels(channels: int) -> None:
    samples = np.zeros((16_000, channels), "<i2")
    samples[:, 0] = 30_000
    decoded = decode_audio(wav_file(samples, 16_000, channels), max_duration_s=10)
    assert decoded.shape == (16_000,)
    assert decoded == pytest.approx(30_000 / 32_768 / channels, abs=1e-5)


def test_samples_beyond_the_range_or_not_numbers_come_out_in_range() -> None:
    file = wav_file(np.array([0.5, 3.0, -3.0, np.nan, np.inf, -np.inf, 3e38] * 100, "<f4"), 16_000, 1, tag=3)
    assert decode_audio(file, max_duration_s=1)[:7].tolist() == [0.5, 1.0, -1.0, 0.0, 1.0, -1.0, 1.0]


def test_a_file_cut_short_gives_what_is_left_of_it() -> None:
    encoded = encode_whole(two_tones(), AudioFormat.MP3, RATE)
    samples = decode_audio(encoded[: len(encoded) // 2], max_duration_s=10)
    assert 1.0 < len(samples) / 16_000 < 1.3


def test_a_file_longer_than_the_limit_is_refused_with_the_limit() -> None:
    encoded = encode_whole(two_tones(), AudioFormat.OPUS, RATE)
    with pytest.raises(RequestTooLargeError, match=r"limit of 2\.3 s") as raised:
        decode_audio(encoded, max_duration_s=2.3)
    assert raised.value.param == "file"
    assert len(decode_audio(encoded, max_duration_s=2.4)) > 0


def test_a_file_over_the_limit_is_not_decoded_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    num_mixed: list[int] = []
    mix = audio_decode._MonoMixer.mix

    def counting_mix(mixer: audio_decode._MonoMixer, frame: av.AudioFrame) -> list[audio_decode.Samples]:
        num_mixed.append(frame.samples)
        return mix(mixer, frame)

    monkeypatch.setattr(audio_decode._MonoMixer, "mix", counting_mix)
    encoded = encode_whole(bytes(2 * RATE * 60), AudioFormat.FLAC, RATE)
    with pytest.raises(RequestTooLargeError):
        decode_audio(encoded, max_duration_s=1.0)
    assert RATE // 2 < sum(num_mixed) <= RATE


def test_a_source_that_changes_its_rate_midway_keeps_its_duration() -> None:
    slow = encode_in_pieces(AudioFormat.MP3, two_tones(16_000, 16_000), 16_000)
    fast = encode_in_pieces(AudioFormat.MP3, two_tones(48_000, 48_000), 48_000)
    assert len(decode_audio(slow + fast, max_duration_s=10)) / 16_000 == pytest.approx(2.0, abs=0.25)


PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", 8, 8, 8, 2, 0, 0, 0) + bytes(500)
PLAYLIST = b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile:///etc/hostname\n#EXT-X-ENDLIST\n"
TRUNCATED_MP3 = encode_whole(two_tones(), AudioFormat.MP3, RATE)[:100]
UNKNOWN_CODEC = wav_file(np.zeros(1_000, "<i2"), 16_000, 1, tag=0x1234)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "the file is empty"),
        (b"This is a letter, not a sound.\n" * 40, "not audio in a known format"),
        (np.random.default_rng(7).bytes(20_000), "not audio in a known format"),
        (PNG, "not audio in a known format"),
        (PLAYLIST, "not audio in a known format"),
        (TRUNCATED_MP3, "not audio in a known format"),
        (encode_whole(b"", AudioFormat.WAV, RATE), "no audio samples"),
        (UNKNOWN_CODEC, "no audio samples"),
        (wav_file(np.zeros(9, "<i2"), 1, 1), "a sample rate of 1 Hz"),
        (wav_file(np.zeros((9, 65), "<i2"), 16_000, 65), "65 channels, more than 64"),
    ],
    ids=[
        "empty",
        "text",
        "random",
        "png",
        "playlist",
        "truncated mp3",
        "wav header only",
        "unknown codec",
        "1 Hz",
        "65 channels",
    ],
)
def test_what_is_not_audio_is_refused_saying_what_works(data: bytes, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as raised:
        decode_audio(data, max_duration_s=30)
    assert (raised.value.param, raised.value.code) == ("file", "invalid_audio")
    assert "send a wav, mp3" in raised.value.message


def test_a_video_without_sound_is_refused_as_such() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        stream = output.add_stream("mpeg4", rate=10, width=64, height=64, pix_fmt="yuv420p")
        output.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8))))
        output.mux(stream.encode(None))
    with pytest.raises(InvalidRequestError, match="no audio stream"):
        decode_audio(file.getvalue(), max_duration_s=30)


HEADS = [b"", *(encode_whole(two_tones(2_400), format, RATE)[:600] for format in (*COMPRESSED, AudioFormat.WAV))]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(head=st.sampled_from(HEADS), cut=st.integers(0, 600), tail=st.binary(max_size=400))
def test_no_bytes_make_the_decoder_raise_anything_but_our_errors(head: bytes, cut: int, tail: bytes) -> None:
    with contextlib.suppress(InvalidRequestError, RequestTooLargeError):
        samples = decode_audio(head[:cut] + tail, max_duration_s=5)
        assert 0 < len(samples) <= 5 * 16_000 + 1_000
        assert np.abs(samples).max() <= 1.0
