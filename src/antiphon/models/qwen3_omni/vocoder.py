"""Streaming decode of codec frames: the reference's `chunked_decode`, for frames that come a few at a time.

In: codes [n, num_quantizers]. Out: every sample that no later frame changes, as float32.
Does not know: requests, PCM, the codes' origin.

The reference decodes windows of 300 frames with 25 frames of left context (whose samples it drops). Here a window's
transformer keeps its keys and values, and the convolutions see again as many frames as reach into the next sample:
the samples are those of the reference, whatever pieces the frames come in. Upsampling looks one input ahead, so the
last few samples of a window are never final; the reference does not have them either.
"""

import math
from typing import Any

import torch
from transformers import DynamicCache, Qwen3OmniMoeCode2Wav
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig

WINDOW_FRAMES = 300
CONTEXT_FRAMES = 25


def reach_frames(config: Qwen3OmniMoeCode2WavConfig) -> int:
    """How many frames before its own a sample's convolutions see, rounded up.

    A causal convolution of kernel k and dilation d at r samples per frame reaches (k - 1) d / r frames back.
    """
    rate, reach = 1, 0.0
    for ratio in config.upsampling_ratios:
        rate *= ratio
        reach += 6 / rate  # ConvNeXt's depthwise kernel of 7
    reach += 6 / rate  # the decoder's first kernel of 7
    for ratio in config.upsample_rates:
        rate *= ratio
        reach += 6 * (1 + 3 + 9) / rate  # three residual units
    return math.ceil(reach + 6 / rate) + 1


class StreamingVocoder:
    """Owns one request's place in its current window: keys, values, and the frames that later samples need."""

    def __init__(self, network: Qwen3OmniMoeCode2Wav) -> None:
        self._network: Any = network
        self._reach = reach_frames(network.config)
        self._samples_per_frame = int(network.total_upsample)
        self._recent = torch.empty((0, network.config.num_quantizers), dtype=torch.int64)  # codes, at most the context
        self._open_window(self._recent)

    def push(self, codes: torch.Tensor) -> torch.Tensor:
        """codes [n, num_quantizers] int64 -> float32 [num_samples] in [-1, 1]."""
        pieces = []
        while len(codes):
            if self._num_own == WINDOW_FRAMES:
                self._open_window(self._recent)
            count = min(len(codes), WINDOW_FRAMES - self._num_own)
            pieces.append(self._decode(codes[:count]))
            self._num_own += count
            self._recent = torch.cat((self._recent, codes[:count]))[-CONTEXT_FRAMES:]
            codes = codes[count:]
        return torch.cat(pieces) if pieces else torch.empty(0)

    def _open_window(self, context: torch.Tensor) -> None:
        self._num_own = 0  # frames of the window that are not context
        self._pending = context
        self._cache = DynamicCache(config=self._network.config)
        self._hidden: torch.Tensor | None = None  # [1, n, hidden_size], of the frames from _first_kept on
        self._first_kept = 0
        self._num_emitted = len(context) * self._samples_per_frame  # samples of the window, the context's included

    def _decode(self, codes: torch.Tensor) -> torch.Tensor:
        codes = torch.cat((self._pending, codes))
        self._pending = codes[:0]
        hidden = self._transform(codes)
        self._hidden = hidden if self._hidden is None else torch.cat((self._hidden, hidden), dim=1)
        first_sample = self._first_kept * self._samples_per_frame
        samples = self._upsample(self._hidden)[self._num_emitted - first_sample :]
        self._num_emitted += len(samples)
        first_needed = max(0, self._num_emitted // self._samples_per_frame - self._reach)
        self._hidden = self._hidden[:, first_needed - self._first_kept :]
        self._first_kept = first_needed
        return samples

    def _transform(self, codes: torch.Tensor) -> torch.Tensor:
        network = self._network
        offset = network.code_offset  # [1, num_quantizers, 1]
        embedded = network.code_embedding(codes.T[None].to(offset.device) + offset).mean(1)
        output = network.pre_transformer(inputs_embeds=embedded, past_key_values=self._cache, use_cache=True)
        hidden: torch.Tensor = output.last_hidden_state
        return hidden

    def _upsample(self, hidden: torch.Tensor) -> torch.Tensor:
        """[1, n, hidden_size] -> float32 [num_samples] on the host."""
        signal = hidden.permute(0, 2, 1)
        for blocks in self._network.upsample:
            for block in blocks:
                signal = block(signal)
        for block in self._network.decoder:
            signal = block(signal)
        samples: torch.Tensor = signal.clamp(min=-1, max=1)[0, 0].float().cpu()
        return samples
