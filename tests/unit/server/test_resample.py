"""A response at another rate than the voice's: the same sound, whole, whatever the pieces it came in."""

import numpy as np
import pytest
import soxr

from antiphon.server.audio_encode import AudioFormat, make_encoder
from antiphon.server.resample import ResamplingEncoder
from tests.unit.server.test_audio import DELAY_SAMPLES, FRAME_SAMPLES, LAST_HZ, av_decode, loudness_at, two_tones

RATE = 24_000
RATES = (8_000, 11_025, 16_000, 22_050, 44_100, 48_000)
PCM = two_tones()
NUM_SAMPLES = len(PCM) // 2


def resampled(format: AudioFormat, to_rate: int, sizes: tuple[int, ...]) -> bytes:
    encoder = ResamplingEncoder(make_encoder(format, to_rate), RATE, to_rate)
    encoded, start, turn = b"", 0, 0
    while start < len(PCM):
        size = sizes[turn % len(sizes)]
        encoded += encoder.encode(PCM[start : start + size])
        start, turn = start + size, turn + 1
    return encoded + encoder.finish()


@pytest.mark.parametrize("to_rate", RATES)
@pytest.mark.parametrize("sizes", [(9_600,), (1, 4_801, 2, 333, 7)])
def test_pieces_of_any_size_give_the_samples_of_the_whole(to_rate: int, sizes: tuple[int, ...]) -> None:
    streamed = np.frombuffer(resampled(AudioFormat.PCM, to_rate, sizes), "<i2").astype(int)
    whole = soxr.resample(np.frombuffer(PCM, "<i2"), RATE, to_rate, quality="HQ").astype(int)
    assert len(streamed) == len(whole) == round(NUM_SAMPLES * to_rate / RATE)
    assert np.abs(streamed - whole).max() <= 1


@pytest.mark.parametrize("to_rate", [8_000, 16_000, 48_000])
@pytest.mark.parametrize("format", list(FRAME_SAMPLES))
def test_a_file_at_another_rate_lasts_as_long_and_keeps_its_end(format: AudioFormat, to_rate: int) -> None:
    samples, file_rate = av_decode(resampled(format, to_rate, (9_600,)))
    assert file_rate == (48_000 if format is AudioFormat.OPUS else to_rate)
    num_extra = len(samples) * to_rate / file_rate - NUM_SAMPLES * to_rate / RATE
    assert -1 <= num_extra <= DELAY_SAMPLES[format] + 2 * FRAME_SAMPLES[format]
    end = round((DELAY_SAMPLES[format] / to_rate + NUM_SAMPLES / RATE) * file_rate)
    assert loudness_at(samples[end - file_rate // 20 : end], file_rate, LAST_HZ) == pytest.approx(0.366, rel=0.15)
