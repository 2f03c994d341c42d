"""Streaming decode: the samples are the reference's, whatever pieces the frames come in. In double precision."""

from pathlib import Path

import pytest
import torch
from transformers import Qwen3OmniMoeCode2Wav

from antiphon.models.qwen3_omni.checkpoint import Checkpoint
from antiphon.models.qwen3_omni.vocoder import StreamingVocoder, reach_frames
from tests.conformance.tiny_qwen3_omni import NUM_CODES


@pytest.fixture(scope="module")
def network(checkpoint_path: Path) -> Qwen3OmniMoeCode2Wav:
    checkpoint = Checkpoint(str(checkpoint_path))
    config = checkpoint.config.code2wav_config
    return checkpoint.load(Qwen3OmniMoeCode2Wav, config, "code2wav.", torch.device("cpu"), torch.float64)


def frames(count: int) -> torch.Tensor:
    return torch.randint(0, NUM_CODES, (count, 16), generator=torch.Generator().manual_seed(count))


class Stream:
    """One request at a time."""

    def __init__(self, network: Qwen3OmniMoeCode2Wav) -> None:
        self._vocoder = StreamingVocoder(network)
        self._window = self._vocoder.start()

    def push(self, codes: torch.Tensor, piece: int = 1000) -> torch.Tensor:
        samples = [torch.empty(0)]
        for start in range(0, len(codes), piece):
            (self._window,), new = self._vocoder.push([self._window], [codes[start : start + piece]])
            samples += new
        return torch.cat(samples)


@pytest.mark.parametrize(("count", "piece"), [(1, 1), (40, 1), (60, 7), (300, 25), (326, 25), (326, 1000)])
def test_pieces_give_the_samples_of_the_whole(network: Qwen3OmniMoeCode2Wav, count: int, piece: int) -> None:
    codes = frames(count)
    with torch.inference_mode():
        want = network.chunked_decode(codes.T[None], chunk_size=300, left_context_size=25)[0, 0].float()
        got = Stream(network).push(codes, piece)
    assert got.shape == want.shape
    assert (got - want).abs().max() < 1e-7 * max(1.0, want.abs().max().item())


def test_a_sample_depends_on_no_frame_beyond_the_reach(network: Qwen3OmniMoeCode2Wav) -> None:
    reach, rate = reach_frames(network.config), int(network.total_upsample)
    hidden = torch.randn(40, network.config.hidden_size, dtype=torch.float64, requires_grad=True)
    (samples,) = StreamingVocoder(network)._upsample([hidden])
    for sample in (35 * rate, 36 * rate - 1):
        (gradient,) = torch.autograd.grad(samples[sample], hidden, retain_graph=True)
        first_frame = int(gradient.abs().sum(dim=-1).nonzero().min())
        assert 35 - reach <= first_frame <= 35 - reach + 4


def test_no_frames_give_no_samples(network: Qwen3OmniMoeCode2Wav) -> None:
    vocoder = StreamingVocoder(network)
    window = vocoder.start()
    (after,), (samples,) = vocoder.push([window], [frames(0)])
    assert len(samples) == 0 and after == window


def test_the_reach_of_the_published_vocoder_is_eleven_frames() -> None:
    from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig

    assert reach_frames(Qwen3OmniMoeCode2WavConfig()) == 11


@pytest.fixture(scope="module")
def single_precision(checkpoint_path: Path) -> Qwen3OmniMoeCode2Wav:
    checkpoint = Checkpoint(str(checkpoint_path))
    config = checkpoint.config.code2wav_config
    return checkpoint.load(Qwen3OmniMoeCode2Wav, config, "code2wav.", torch.device("cpu"), torch.float32)


def test_requests_decoded_together_sound_as_each_alone(single_precision: Qwen3OmniMoeCode2Wav) -> None:
    """Eight that start in turn, in pieces of unlike sizes; two of them go on into a second window."""
    speech = [frames(count) for count in (80, 81, 330, 7, 80, 325, 60, 1)]
    vocoder = StreamingVocoder(single_precision)
    windows, left = [vocoder.start() for _ in speech], list(speech)
    heard: list[list[torch.Tensor]] = [[] for _ in speech]
    with torch.inference_mode():
        turn = 0
        while any(len(rest) for rest in left):
            turn += 1
            pieces = [rest[: (4 if turn <= number + 1 else 25) * (turn > number)] for number, rest in enumerate(left)]
            left = [rest[len(piece) :] for rest, piece in zip(left, pieces, strict=True)]
            windows, samples = vocoder.push(windows, pieces)
            for of_request, new in zip(heard, samples, strict=True):
                of_request.append(new)
        for codes, of_request in zip(speech, heard, strict=True):
            want, got = Stream(single_precision).push(codes, 25), torch.cat(of_request)
            assert got.shape == want.shape
            assert len(want) == 0 or (got - want).abs().max() < 1e-5


def test_those_whose_shapes_agree_share_one_call(single_precision: Qwen3OmniMoeCode2Wav) -> None:
    sizes: list[int] = []
    hook = single_precision.decoder[0].register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    vocoder = StreamingVocoder(single_precision)
    with torch.inference_mode():
        vocoder.push([vocoder.start() for _ in range(6)], [frames(25)] * 4 + [frames(4)] * 2)
    hook.remove()
    assert sizes == [4, 2]
