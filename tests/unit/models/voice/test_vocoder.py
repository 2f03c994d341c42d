from itertools import pairwise

import numpy as np
import pytest
from hibari import dsp
from numpy.typing import NDArray

from antiphon.models.voice.acoustic import AcousticModel
from antiphon.models.voice.vocoder import HOP, PARAMS_WIDTH, StreamingVocoder, to_pcm16

SEED = 11
LOOK_AHEAD_FRAMES = 4
CHUNKS = (1, 7, 16, 10_000)


class GivenNoise:
    """Stands in for the generator of the one-shot synthesis: gives frame-ordered noise in its layout."""

    def __init__(self, by_frame: NDArray[np.float32]) -> None:
        self._by_frame = by_frame  # [num_frames, 1202]

    def standard_normal(self, shape: tuple[int, int], dtype: type[np.float32]) -> NDArray[np.float32]:
        by_bin = np.ascontiguousarray(self._by_frame.view(np.complex64).T).view(np.float32)
        assert by_bin.shape == shape and by_bin.dtype == dtype
        return by_bin


def one_shot(params: NDArray[np.float32], sentence_end: NDArray[np.uint8]) -> NDArray[np.float32]:
    """hibari's own synthesis of each sentence."""
    generator = np.random.default_rng(SEED)
    waves = []
    for start, stop in pairwise([0, *(np.flatnonzero(sentence_end) + 1).tolist()]):
        rows = params[start:stop]
        noise = GivenNoise(generator.standard_normal((len(rows), 1202), dtype=np.float32))
        spectra = [np.ascontiguousarray(rows[:, i * 601 : (i + 1) * 601].T) for i in range(5)]
        waves.append(dsp.synth(*spectra, rows[:, -1], noise))
    return np.concatenate(waves)


def streamed(params: NDArray[np.float32], sentence_end: NDArray[np.uint8], chunk: int) -> NDArray[np.float32]:
    vocoder = StreamingVocoder(SEED)
    starts = range(0, len(params), chunk)
    return np.concatenate([vocoder.push(params[i : i + chunk], sentence_end[i : i + chunk]) for i in starts])


@pytest.fixture(scope="module")
def speech() -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Two sentences of the real acoustic network."""
    model = AcousticModel.load(num_threads=1)
    params, sentence_end = model.frames(
        model.phoneme_ids("She sells sea shells by the sea shore. Does she really?"), 1.0
    )
    assert sentence_end.sum() == 2
    params.setflags(write=False)  # chunks come out of shared memory that is mapped read-only
    return params, sentence_end


@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunks_of_any_size_sound_like_one_shot(
    speech: tuple[NDArray[np.float32], NDArray[np.uint8]], chunk: int
) -> None:
    expected = one_shot(*speech)
    assert np.abs(expected).max() > 0.1
    samples = streamed(*speech, chunk)
    assert samples.dtype == np.float32
    np.testing.assert_allclose(samples, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 2, 3, 16])
@pytest.mark.parametrize("num_frames", [1, 2, 3, 4, 5, 6])
def test_short_sentences_sound_like_one_shot(
    speech: tuple[NDArray[np.float32], NDArray[np.uint8]], num_frames: int, chunk: int
) -> None:
    voiced = int(np.flatnonzero(speech[0][:, -1] > 100.0)[20])
    params = np.tile(speech[0][voiced : voiced + num_frames], (3, 1))
    sentence_end = np.tile(np.eye(1, num_frames, num_frames - 1, dtype=np.uint8)[0], 3)
    expected = one_shot(params, sentence_end)
    assert np.abs(expected).max() > 1e-3
    samples = streamed(params, sentence_end, chunk)
    assert len(samples) == 3 * num_frames * HOP
    np.testing.assert_allclose(samples, expected, rtol=0, atol=1e-5)


def test_no_sample_waits_longer_than_the_look_ahead(speech: tuple[NDArray[np.float32], NDArray[np.uint8]]) -> None:
    params, sentence_end = speech
    vocoder = StreamingVocoder(SEED)
    length = int(np.flatnonzero(sentence_end)[0]) + 1
    num_samples = 0
    for frame in range(length - 1):
        num_samples += len(vocoder.push(params[frame : frame + 1], sentence_end[frame : frame + 1]))
        assert num_samples == max(0, frame + 1 - LOOK_AHEAD_FRAMES) * HOP
    num_samples += len(vocoder.push(params[length - 1 : length], sentence_end[length - 1 : length]))
    assert num_samples == length * HOP


def test_a_push_without_frames_gives_no_samples() -> None:
    vocoder = StreamingVocoder(SEED)
    assert len(vocoder.push(np.zeros((0, PARAMS_WIDTH), np.float32), np.zeros(0, np.uint8))) == 0


def test_other_seed_gives_other_noise(speech: tuple[NDArray[np.float32], NDArray[np.uint8]]) -> None:
    same, other = StreamingVocoder(SEED).push(*speech), StreamingVocoder(SEED + 1).push(*speech)
    np.testing.assert_array_equal(StreamingVocoder(SEED).push(*speech), same)
    assert np.abs(same - other).max() > 1e-4


def test_frames_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="3006"):
        StreamingVocoder(SEED).push(np.zeros((4, 3005), np.float32), np.zeros(4, np.uint8))
    with pytest.raises(ValueError, match="sentence_end"):
        StreamingVocoder(SEED).push(np.zeros((4, 3006), np.float32), np.zeros(3, np.uint8))


def test_pcm16_rounds_and_clips() -> None:
    steps = np.array([0.0, 0.6, -0.6, 1.4, 32767.0, 40000.0, -32767.0, -40000.0], np.float32)
    pcm = np.frombuffer(to_pcm16(steps / np.float32(32767.0)), "<i2")
    assert pcm.tolist() == [0, 1, -1, 1, 32767, 32767, -32767, -32768]
