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


@pytest.mark.parametrize(("count", "piece"), [(1, 1), (40, 1), (60, 7), (300, 25), (326, 25), (326, 1000)])
def test_pieces_give_the_samples_of_the_whole(network: Qwen3OmniMoeCode2Wav, count: int, piece: int) -> None:
    codes = frames(count)
    with torch.inference_mode():
        want = network.chunked_decode(codes.T[None], chunk_size=300, left_context_size=25)[0, 0].float()
        vocoder = StreamingVocoder(network)
        got = torch.cat([vocoder.push(codes[start : start + piece]) for start in range(0, count, piece)])
    assert got.shape == want.shape
    assert (got - want).abs().max() < 1e-7 * max(1.0, want.abs().max().item())


def test_a_sample_depends_on_no_frame_beyond_the_reach(network: Qwen3OmniMoeCode2Wav) -> None:
    reach, rate = reach_frames(network.config), int(network.total_upsample)
    hidden = torch.randn(1, 40, network.config.hidden_size, dtype=torch.float64, requires_grad=True)
    samples = StreamingVocoder(network)._upsample(hidden)
    for sample in (35 * rate, 36 * rate - 1):
        (gradient,) = torch.autograd.grad(samples[sample], hidden, retain_graph=True)
        first_frame = int(gradient.abs().sum(dim=-1)[0].nonzero().min())
        assert 35 - reach <= first_frame <= 35 - reach + 4


def test_no_frames_give_no_samples(network: Qwen3OmniMoeCode2Wav) -> None:
    assert len(StreamingVocoder(network).push(frames(0))) == 0


def test_the_reach_of_the_published_vocoder_is_eleven_frames() -> None:
    from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig

    assert reach_frames(Qwen3OmniMoeCode2WavConfig()) == 11
