"""Streaming vocoder: acoustic frames in, finished samples out, chunk by chunk.

In: rows of (lh, theta, ln, lr, phi, f0), 80 a second, and where sentences end. Out: 24 kHz float32 samples.
Does not know: text, requests' ids, chunk plans, audio containers.

    frame i  needs the pulse train of blocks i-2 .. i+1, block k needs f0 of frames k-1 .. k+1
    output block j  needs frames j-1 .. j+2, so samples of frame j are final once frame j+4 (50 ms later) is known
"""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from hibari import dsp
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]

SAMPLE_RATE: int = dsp.SR
HOP: int = dsp.HOP  # samples per frame
N_FFT: int = dsp.N_FFT
NUM_BINS = N_FFT // 2 + 1
PARAMS_WIDTH = 5 * NUM_BINS + 1  # lh, theta, ln, lr, phi, then f0
OVERLAP = N_FFT // HOP  # blocks that one frame touches

_WINDOW: Float32Array = dsp.WIN
_ANALYSIS_WINDOW: Float32Array = dsp.WIN_SRC.reshape(OVERLAP, HOP)
_HALF_BLOCK = HOP // 2
_TRIMMED_BLOCKS = OVERLAP // 2  # the centred transform's first half window is no output
_VOICED_HZ = np.float32(40.0)
_MAX_HARMONIC_HZ = np.float32(11000.0)
_POSITION = (((np.arange(HOP) + 0.5) / HOP - 0.5) % 1.0).astype(np.float32)  # of a sample between two frames' centres


def to_pcm16(samples: Float32Array) -> bytes:
    """float32 samples in [-1, 1] -> s16le bytes, rounded to the nearest step; louder samples are clipped."""
    steps = np.rint(samples * np.float32(32767.0))
    pcm: NDArray[np.int16] = np.clip(steps, -32768.0, 32767.0).astype("<i2")
    return pcm.tobytes()


def _empty(*shape: int) -> Float32Array:
    return np.zeros(shape, np.float32)


@dataclass(slots=True)
class _SentenceState:
    """What the next chunk of a sentence needs of the ones before it."""

    num_frames: int = 0  # received
    rows: Float32Array = field(default_factory=lambda: _empty(0, PARAMS_WIDTH))  # received, not synthesised yet
    num_blocks: int = 0  # of the pulse train
    phase_sum: float = 0.0  # sum of f0 over all samples so far
    pulses: Float32Array = field(default_factory=lambda: _empty(0))  # from the next frame's first sample on
    num_synthesised: int = 0
    overlap: Float32Array = field(default_factory=lambda: _empty(OVERLAP - 1, HOP))  # blocks that later frames add to


class StreamingVocoder:
    """Owns one request's synthesis state: the sentence in progress and the noise generator.

    Same samples as `hibari.dsp.synth` on each whole sentence, for any chunking. Noise is drawn frame by
    frame, `standard_normal((frames, 1202), float32)` as interleaved complex bins, one generator per request.
    """

    def __init__(self, seed: int) -> None:
        self._noise = np.random.default_rng(seed)
        self._sentence = _SentenceState()

    def push(self, params: Float32Array, sentence_end: NDArray[np.uint8]) -> Float32Array:
        """Take frames, return every sample that became final.

        params: [num_frames, 3006] float32, only read. sentence_end: [num_frames], 1 on a sentence's last frame.
        Returns float32 [num_samples]; a finished sentence has given exactly 300 samples per frame.
        """
        if params.ndim != 2 or params.shape[1] != PARAMS_WIDTH or sentence_end.shape != params.shape[:1]:
            raise ValueError(
                f"vocoder frames must be params [F, {PARAMS_WIDTH}] with sentence_end [F], "
                f"got {params.shape} with {sentence_end.shape}"
            )
        parts: list[Float32Array] = []
        start = 0
        for end in (np.flatnonzero(sentence_end) + 1).tolist():
            parts.append(self._push_part(params[start:end], is_last=True))
            self._sentence = _SentenceState()
            start = end
        if start < len(params):
            parts.append(self._push_part(params[start:], is_last=False))
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else _empty(0)

    def _push_part(self, params: Float32Array, *, is_last: bool) -> Float32Array:
        """Frames of one sentence -> its new final samples."""
        state = self._sentence
        state.num_frames += len(params)
        state.rows = np.concatenate((state.rows, params))
        _extend_pulses(state, is_last=is_last)
        num_ready = state.num_frames if is_last else max(0, state.num_frames - 2)
        num_new = num_ready - state.num_synthesised
        if num_new == 0:
            return _empty(0)
        if state.num_synthesised == 0:
            state.pulses = _reflect_start(state.pulses, is_last=is_last)
        elif is_last:
            state.pulses = np.concatenate((state.pulses, state.pulses[-2 : -HOP - 2 : -1]))
        spectrum = _harmonics(state.pulses, num_new)
        noise = self._noise.standard_normal((num_new, 2 * NUM_BINS), dtype=np.float32)
        _apply_filters(spectrum, state.rows[:num_new], noise)
        state.rows = state.rows[num_new:].copy()
        state.pulses = state.pulses[num_new * HOP :].copy()
        return _overlap_add(state, spectrum, is_last=is_last)


def _extend_pulses(state: _SentenceState, *, is_last: bool) -> None:
    """Append the pulse train of every block whose f0 neighbours are known (at a sentence's ends: repeated)."""
    first, stop = state.num_blocks, state.num_frames if is_last else state.num_frames - 1
    if stop <= first:
        return
    base = state.num_frames - len(state.rows)  # frame of rows[0]
    around = np.arange(first - 1, stop + 1)
    np.minimum(np.maximum(around, 0), state.num_frames - 1, out=around)
    f0 = state.rows[around - base, -1]  # [blocks + 2]
    train, state.phase_sum = _pulse_train(f0, state.phase_sum)
    state.pulses = np.concatenate((state.pulses, train))
    state.num_blocks = stop


def _pulse_train(f0: Float32Array, phase_sum: float) -> tuple[Float32Array, float]:
    """f0 [blocks + 2] in Hz, one neighbour at each side -> pulse train [blocks * 300] and the new phase sum.

    Every harmonic below 11 kHz at unit amplitude: sin((H + 1/2) t) / (2 sin(t/2)) - 1/2; silent where unvoiced.
    The order of operations is `hibari.dsp.pulses`'s: H * t is large, so another order would sound another phase.
    """
    hertz = _pitch_per_sample(f0)
    unvoiced = hertz <= _VOICED_HZ
    np.maximum(hertz, _VOICED_HZ, out=hertz)
    sums = _running_sum(hertz, phase_sum)
    if unvoiced.all():
        return _empty(len(hertz)), sums[-1].item()
    cycles = sums * (1.0 / SAMPLE_RATE)
    cycles -= np.floor(cycles)
    angle = (cycles * (2 * np.pi)).astype(np.float32)
    order = np.floor(_MAX_HARMONIC_HZ / hertz) + np.float32(0.5)
    denominator = np.float32(2.0) * np.sin(angle * np.float32(0.5))
    at_pulse = np.abs(denominator) <= 2e-3
    denominator[at_pulse] = 1.0
    train = np.sin(order * angle) / denominator
    train[at_pulse] = order[at_pulse]
    train -= np.float32(0.5)
    train[unvoiced] = 0.0
    return train, sums[-1].item()


def _pitch_per_sample(f0: Float32Array) -> Float32Array:
    """f0 [blocks + 2] at the frames' centres -> Hz [blocks * 300], linear in between."""
    hertz = np.empty((len(f0) - 2, HOP), np.float32)
    before, centre, after = f0[:-2, None], f0[1:-1, None], f0[2:, None]
    rising, falling = _POSITION[:_HALF_BLOCK], _POSITION[_HALF_BLOCK:]
    hertz[:, :_HALF_BLOCK] = before * (np.float32(1.0) - rising) + centre * rising
    hertz[:, _HALF_BLOCK:] = centre * (np.float32(1.0) - falling) + after * falling
    return hertz.reshape(-1)


def _running_sum(values: Float32Array, start: float) -> NDArray[np.float64]:
    """cumsum that goes on from `start`, summing in the same order as one cumsum over everything."""
    sums = np.empty(len(values) + 1, np.float64)
    sums[0] = start
    sums[1:] = values
    return np.cumsum(sums, out=sums)[1:]


def _reflect_start(pulses: Float32Array, *, is_last: bool) -> Float32Array:
    """Mirror half a window in front of a sentence (and behind it, when it is complete already).

    Of a sentence in progress, the sample farthest in front mirrors one that is not known yet; the window is 0 there.
    """
    half = N_FFT // 2
    if is_last:
        return np.pad(pulses, half, mode="reflect")
    return np.concatenate((_empty(1), pulses[half - 1 : 0 : -1], pulses))


def _harmonics(pulses: Float32Array, num_frames: int) -> NDArray[np.complex64]:
    """Spectra of the windowed pulse train, [num_frames, 601]."""
    blocks = pulses.reshape(-1, HOP)
    frames = np.empty((num_frames, OVERLAP, HOP), np.float32)
    for tap in range(OVERLAP):
        np.multiply(blocks[tap : tap + num_frames], _ANALYSIS_WINDOW[tap], out=frames[:, tap])
    spectra: NDArray[np.complex64] = dsp.rfft(frames.reshape(num_frames, N_FFT), 1)
    return spectra


def _apply_filters(spectrum: NDArray[np.complex64], rows: Float32Array, noise: Float32Array) -> None:
    """spectrum [F, 601] := exp(lh) e^(i pi tanh(theta)) spectrum + exp(ln) noise + exp(lr) e^(i phi), in place."""
    lh, theta, ln, lr, phi = (rows[:, i * NUM_BINS : (i + 1) * NUM_BINS] for i in range(5))
    turn = np.empty(spectrum.shape, np.complex64)
    angle = np.tanh(theta)
    angle *= np.float32(np.pi)
    _polar(turn, lh, angle)
    spectrum *= turn
    shaped = noise.reshape(len(rows), NUM_BINS, 2)
    shaped *= _gain(ln)[:, :, None]
    spectrum += noise.view(np.complex64)
    _polar(turn, lr, phi)
    spectrum += turn


def _polar(out: NDArray[np.complex64], log_gain: Float32Array, angle: Float32Array) -> None:
    gain = _gain(log_gain)
    np.multiply(np.cos(angle), gain, out=out.real)
    np.multiply(np.sin(angle), gain, out=out.imag)


def _gain(log_gain: Float32Array) -> Float32Array:
    """exp, bounded as in hibari so that a wild prediction cannot overflow."""
    limited = np.minimum(log_gain, np.float32(7.0))
    return np.exp(limited, out=limited)


def _overlap_add(state: _SentenceState, spectrum: NDArray[np.complex64], *, is_last: bool) -> Float32Array:
    """Inverse transform of new frames, added to the carry; returns the samples nothing more is added to."""
    num_new, first = len(spectrum), state.num_synthesised
    frames: Float32Array = dsp.irfft(spectrum, N_FFT, 1)
    frames *= _WINDOW
    taps = frames.reshape(num_new, OVERLAP, HOP)
    blocks = _empty(num_new + OVERLAP - 1, HOP)
    blocks[: OVERLAP - 1] = state.overlap
    for tap in range(OVERLAP):
        blocks[tap : tap + num_new] += taps[:, tap]
    state.num_synthesised += num_new
    state.overlap = blocks[num_new:].copy()
    last_frame = state.num_synthesised - 1
    num_final = num_new + _TRIMMED_BLOCKS if is_last else num_new
    final = blocks[:num_final]
    final *= _window_gain(0, OVERLAP - 1)
    for block in _edge_blocks(first, first + num_final, last_frame):
        reached = max(0, block - last_frame), min(OVERLAP - 1, block)
        final[block - first] *= _window_gain(*reached) / _window_gain(0, OVERLAP - 1)
    return final[max(0, _TRIMMED_BLOCKS - first) :].reshape(-1)


def _edge_blocks(first: int, stop: int, last_frame: int) -> list[int]:
    """Blocks in [first, stop) that fewer than four frames reach: a sentence's first three and those past its end."""
    return [block for block in range(first, stop) if block < OVERLAP - 1 or block > last_frame]


@lru_cache(maxsize=OVERLAP * OVERLAP)
def _window_gain(first_tap: int, last_tap: int) -> Float32Array:
    """1 / summed squared window of a block that taps first..last reach, [300]."""
    squared = (_WINDOW * _WINDOW).reshape(OVERLAP, HOP)
    power = np.maximum(squared[first_tap : last_tap + 1].sum(axis=0), np.float32(1e-11))
    gain: Float32Array = np.float32(1.0) / power
    return gain
