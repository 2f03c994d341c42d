"""Streaming decode of codec frames: the reference's `chunked_decode`, for frames that come a few at a time.

In: windows, and codes [n, num_quantizers] for each. Out: every sample that no later frame changes, as float32.
Does not know: requests, PCM, the codes' origin.

The reference decodes windows of 300 frames with 25 frames of left context (whose samples it drops). Here a window's
transformer keeps its keys and values, and the convolutions see again as many frames as reach into the next sample:
the samples are those of the reference, whatever pieces the frames come in. Upsampling looks one input ahead, so the
last few samples of a window are never final; the reference does not have them either.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
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


Past = tuple[tuple[torch.Tensor, torch.Tensor], ...]
"""Each layer's keys and values, [1, num_heads, n, head_dim]: of the frames that a later one may see."""


@dataclass(frozen=True)
class Window:
    """One request's place in its current window, as a value: decoding gives the next one and leaves this as it is.

    recent: [n, num_quantizers] int64, the request's last codes, at most the context. pending: the context, until it
    has been transformed. num_own: the window's frames that are not context. num_transformed: its frames that are in
    `past`, or have left it. hidden: [n, hidden_size], of the frames from first_kept on. num_emitted: samples of the
    window that are out, those of the context included.
    """

    recent: torch.Tensor
    pending: torch.Tensor
    num_own: int = 0
    past: Past = ()
    num_transformed: int = 0
    hidden: torch.Tensor | None = None
    first_kept: int = 0
    num_emitted: int = 0

    @property
    def num_past(self) -> int:
        """Frames in `past`."""
        return self.past[0][0].shape[2] if self.past else 0


class StreamingVocoder:
    """Decodes the next frames of several requests: those whose shapes agree in one call. Keeps nothing of them."""

    def __init__(self, network: Qwen3OmniMoeCode2Wav) -> None:
        self._network: Any = network
        self._reach = reach_frames(network.config)
        self._samples_per_frame = int(network.total_upsample)

    def start(self) -> Window:
        """Of a request without frames."""
        return self._opened(torch.empty((0, self._network.config.num_quantizers), dtype=torch.int64))

    def push(self, windows: list[Window], codes: list[torch.Tensor]) -> tuple[list[Window], list[torch.Tensor]]:
        """codes: [n, num_quantizers] int64 each. The windows after them, and float32 [num_samples] in [-1, 1] each."""
        windows, left = list(windows), list(codes)
        pieces: list[list[torch.Tensor]] = [[torch.empty(0)] for _ in codes]
        while turn := [index for index, rest in enumerate(left) if len(rest)]:
            taken = []
            for index in turn:
                if windows[index].num_own == WINDOW_FRAMES:
                    windows[index] = self._opened(windows[index].recent)
                count = WINDOW_FRAMES - windows[index].num_own
                taken.append(left[index][:count])
                left[index] = left[index][count:]
            decoded = self._decode([windows[index] for index in turn], taken)
            for index, (window, samples) in zip(turn, decoded, strict=True):
                windows[index] = window
                pieces[index].append(samples)
        return windows, [torch.cat(of_request) for of_request in pieces]

    def _opened(self, context: torch.Tensor) -> Window:
        return Window(context, context, num_emitted=len(context) * self._samples_per_frame)

    def _decode(self, windows: list[Window], codes: list[torch.Tensor]) -> list[tuple[Window, torch.Tensor]]:
        frames = [torch.cat((window.pending, new)) for window, new in zip(windows, codes, strict=True)]
        new_hidden, pasts = self._transform(windows, frames)
        hidden = [
            new if window.hidden is None else torch.cat((window.hidden, new))
            for window, new in zip(windows, new_hidden, strict=True)
        ]
        signals = self._upsample(hidden)
        return [
            self._next(*of_request) for of_request in zip(windows, codes, frames, hidden, pasts, signals, strict=True)
        ]

    def _next(
        self,
        window: Window,
        codes: torch.Tensor,
        frames: torch.Tensor,
        hidden: torch.Tensor,
        past: Past,
        signal: torch.Tensor,
    ) -> tuple[Window, torch.Tensor]:
        """The window behind `frames`, and the part of `signal` (of all of `hidden`) that has not been out."""
        samples = signal[window.num_emitted - window.first_kept * self._samples_per_frame :]
        num_emitted = window.num_emitted + len(samples)
        first_kept = max(0, num_emitted // self._samples_per_frame - self._reach)
        following = Window(
            recent=torch.cat((window.recent, codes))[-CONTEXT_FRAMES:],
            pending=frames[:0],
            num_own=window.num_own + len(codes),
            past=past,
            num_transformed=window.num_transformed + len(frames),
            hidden=hidden[first_kept - window.first_kept :],
            first_kept=first_kept,
            num_emitted=num_emitted,
        )
        return following, samples

    def _transform(self, windows: list[Window], frames: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[Past]]:
        """Per request [n, hidden_size] of its frames, and what the next ones need.

        Requests with equally many new and past frames share a call, wherever in their windows they are: all layers
        have a sliding window, so who sees whom depends on distances alone.
        """
        hidden: list[torch.Tensor] = [torch.empty(0)] * len(frames)
        pasts: list[Past] = [()] * len(frames)
        offset = self._network.code_offset  # [1, num_quantizers, 1]
        for group in _alike([(len(new), window.num_past) for window, new in zip(windows, frames, strict=True)]):
            together = [windows[index] for index in group]
            codes = torch.stack([frames[index] for index in group]).transpose(1, 2).to(offset.device)
            cache = self._cache(together)
            firsts = torch.tensor([[window.num_transformed] for window in together], device=offset.device)
            output = self._network.pre_transformer(
                inputs_embeds=self._network.code_embedding(codes + offset).mean(1),
                position_ids=firsts + torch.arange(codes.shape[2], device=offset.device),
                past_key_values=cache,
                use_cache=True,
            )
            for place, index in enumerate(group):
                hidden[index] = output.last_hidden_state[place]
                one = slice(place, place + 1)
                pasts[index] = tuple((layer.keys[one], layer.values[one]) for layer in _layers(cache))
        return hidden, pasts

    def _cache(self, windows: list[Window]) -> DynamicCache:
        """A cache that holds the windows' pasts, which are equally long."""
        cache = DynamicCache(config=self._network.config)
        for number, layer in enumerate(_layers(cache) if windows[0].past else ()):
            keys = torch.cat([window.past[number][0] for window in windows])
            values = torch.cat([window.past[number][1] for window in windows])
            layer.update(keys, values)
            layer.cumulative_length = windows[0].num_transformed
        return cache

    def _upsample(self, hidden: list[torch.Tensor]) -> list[torch.Tensor]:
        """Per request [n, hidden_size] -> float32 [num_samples] on the host."""
        samples: list[torch.Tensor] = [torch.empty(0)] * len(hidden)
        for group in _alike([of_request.shape for of_request in hidden]):
            signal = torch.stack([hidden[index] for index in group]).transpose(1, 2)
            for blocks in self._network.upsample:
                for block in blocks:
                    signal = block(signal)
            for block in self._network.decoder:
                signal = block(signal)
            for index, of_request in zip(group, signal.clamp(min=-1, max=1)[:, 0].float().cpu(), strict=True):
                samples[index] = of_request
        return samples


def _layers(cache: DynamicCache) -> list[Any]:
    layers: list[Any] = list(cache.layers)
    assert all(layer.is_sliding for layer in layers), "every layer of a code2wav transformer has a sliding window"
    return layers


def _alike(shapes: Sequence[Hashable]) -> list[list[int]]:
    """The indices of equal shapes together, in order."""
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index, shape in enumerate(shapes):
        groups[shape].append(index)
    return list(groups.values())
