"""Decode steps in a few fixed shapes, so that a device can record each once and then replay it.

In: spans of one position each, and the blocks of their sequences. Out: logits and rows, as `forward` would give.
Does not know: scheduling, sampling, how work is recorded (Device.record).

A step is padded to the next of a few batch sizes and table widths; what is padded reads and writes the scrap block.
Shapes are recorded when they first occur. A recording's results lie in the same memory every time: the caller
samples from them and starts their copy to the host before the next step.
"""

from collections.abc import Callable
from typing import Any

import torch

from antiphon.stage.engine.autoregressive_model import CapturableModel, Span, StepTensors
from antiphon.stage.runner.device import Device, Tensors
from antiphon.stage.runner.paged_attention import PagedKVCache, PagedStep

_MIN_WIDTH = 8  # blocks


def batch_size_for(num_sequences: int) -> int:
    """1, 2, 4, 8, then every multiple of 8."""
    return -(-num_sequences // 8) * 8 if num_sequences > 8 else _power_of_two(num_sequences)


def width_for(num_blocks: int) -> int:
    """8, 16, 32, ... blocks per sequence."""
    return max(_MIN_WIDTH, _power_of_two(num_blocks))


class DecodeGraphs:
    """Owns one recording per shape that has occurred."""

    def __init__(self, model: CapturableModel[Any], device: Device, cache: PagedKVCache) -> None:
        self._model = model
        self._device = device
        self._cache = cache
        self._recordings: dict[tuple[int, int], _Recording] = {}

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(batch size, blocks per sequence) of what has been recorded, in order of appearance."""
        return list(self._recordings)

    def forward(self, spans: list[Span[Any]], blocks: list[list[int]]) -> StepTensors:
        """Each span has one position and samples. Results are valid until the next call."""
        inputs = self._model.decode_inputs(spans)
        shape = (batch_size_for(len(spans)), width_for(max(map(len, blocks))))
        if shape not in self._recordings:
            self._recordings[shape] = _Recording(self._model, self._device, self._cache, shape, inputs)
        tensors = self._recordings[shape].run(inputs, blocks, [span.stop for span in spans])
        rows = {name: of_batch[: len(spans)] for name, of_batch in tensors.rows.items()}
        return StepTensors(tensors.logits[: len(spans)], rows)


class _Recording:
    """Owns the buffers that one shape's decode reads, and its recorded work.

    blocks: [batch_size, width] int64; stops: [batch_size] int64, each sequence's positions with the new one.
    """

    def __init__(
        self,
        model: CapturableModel[Any],
        device: Device,
        cache: PagedKVCache,
        shape: tuple[int, int],
        inputs: Tensors,
    ) -> None:
        self._scrap = cache.scrap_block
        self._batch_size, self._width = shape
        self._inputs = {
            name: torch.zeros((self._batch_size, *given.shape[1:]), dtype=given.dtype, device=device.torch_device)
            for name, given in inputs.items()
        }
        self._blocks = torch.full(shape, self._scrap, device=device.torch_device)
        self._stops = torch.ones(self._batch_size, dtype=torch.int64, device=device.torch_device)

        def decode() -> StepTensors:
            return model.decode(self._inputs, PagedStep.of_decode(cache, self._blocks, self._stops))

        self._decode: Callable[[], StepTensors] = device.record(decode)

    def run(self, inputs: Tensors, blocks: list[list[int]], stops: list[int]) -> StepTensors:
        """Fill the buffers and do the work."""
        num_unused = self._batch_size - len(stops)
        for name, given in inputs.items():
            self._inputs[name][: len(stops)].copy_(given)
        table = [[*row, *[self._scrap] * (self._width - len(row))] for row in blocks]
        self._blocks.copy_(torch.tensor([*table, *[[self._scrap] * self._width] * num_unused]))
        self._stops.copy_(torch.tensor([*stops, *[1] * num_unused]))
        return self._decode()


def _power_of_two(number: int) -> int:
    """The least power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()
