"""The runner of the autoregressive engine: a step's spans -> one forward pass over the paged KV cache.

In: spans and the blocks of their sequences. Out: logits on the device, rows per span on the host.
Does not know: scheduling, sampling, lanes. One runner for every device; see device.py for what differs.
"""

from typing import Any

import numpy as np
import torch

from antiphon.stage.engine.autoregressive_model import AutoregressiveModel, Span
from antiphon.stage.request import Arrays
from antiphon.stage.runner.device import Device
from antiphon.stage.runner.paged_attention import PagedKVCache, PagedStep, SequenceSlots


class AutoregressiveRunner:
    """Owns the KV cache of a loaded model."""

    def __init__(self, model: AutoregressiveModel[Any], device: Device, *, num_blocks: int, block_size: int) -> None:
        self._model = model
        self._device = device
        layout = model.kv_layout
        self._cache = PagedKVCache(
            num_layers=layout.num_layers,
            num_blocks=num_blocks,
            block_size=block_size,
            num_kv_heads=layout.num_kv_heads,
            head_dim=layout.head_dim,
            dtype=layout.dtype,
            device=device.torch_device,
        )

    def forward(self, spans: list[Span[Any]], blocks: list[list[int]]) -> tuple[torch.Tensor, list[Arrays]]:
        """logits [num_sampling_spans, vocab_size], and for each span name -> rows [stop - start, ...]."""
        with torch.inference_mode():
            slots = [self._slots(span, of_span) for span, of_span in zip(spans, blocks, strict=True)]
            tensors = self._model.forward(spans, PagedStep(self._cache, slots))
            host = self._device.to_host(tensors.rows)
        borders = np.cumsum([span.stop - span.start for span in spans])[:-1]
        pieces = {name: np.split(array, borders) for name, array in host.items()}
        return tensors.logits, [{name: split[i] for name, split in pieces.items()} for i in range(len(spans))]

    def _slots(self, span: Span[Any], blocks: list[int]) -> SequenceSlots:
        size = self._cache.block_size
        firsts = torch.tensor(blocks, dtype=torch.int64) * size
        slots = (firsts[:, None] + torch.arange(size)).flatten()[: span.stop]
        return SequenceSlots(slots.to(self._device.torch_device), span.stop - span.start)
