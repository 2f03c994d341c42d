"""The runner of the autoregressive engine: a step's spans -> one forward pass over the paged KV cache.

In: spans and the blocks of their sequences. Out: logits on the device, rows per span on their way to the host.
Does not know: scheduling, sampling, lanes. One runner for every device; see device.py for what differs.
"""

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch

from antiphon.stage.engine.autoregressive_model import AutoregressiveModel, CapturableModel, Span, StepTensors
from antiphon.stage.request import Arrays
from antiphon.stage.runner.decode_graphs import DecodeGraphs
from antiphon.stage.runner.device import Device, HostCopy
from antiphon.stage.runner.paged_attention import PagedKVCache, PagedStep, SequenceSlots


@dataclass(frozen=True)
class Computed:
    """logits: [num_sampling_spans, vocab_size] on the device; valid, like the rows, until the next step."""

    logits: torch.Tensor
    lengths: list[int]
    copy: HostCopy

    def rows(self) -> list[Arrays]:
        """For each span name -> rows [stop - start, ...]. Waits until they are on the host."""
        borders = np.cumsum(self.lengths)[:-1]
        pieces = {name: np.split(array, borders) for name, array in self.copy.wait().items()}
        return [{name: split[i] for name, split in pieces.items()} for i in range(len(self.lengths))]


class AutoregressiveRunner:
    """Owns the KV cache of a loaded model, and the recordings of its decode if it has any.

    capturable: the same model, if its decode shall be recorded where the device can.
    """

    def __init__(
        self,
        model: AutoregressiveModel[Any],
        device: Device,
        *,
        num_blocks: int,
        block_size: int,
        capturable: CapturableModel[Any] | None = None,
    ) -> None:
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
        is_recorded = capturable is not None and capturable.captures_decode and device.has_graphs
        self.graphs = DecodeGraphs(capturable, device, self._cache) if capturable is not None and is_recorded else None

    def forward(self, spans: list[Span[Any]], blocks: list[list[int]]) -> Computed:
        """Compute the spans; what they give for the host is on its way when this returns."""
        with torch.inference_mode():
            tensors = self._compute(spans, blocks)
            return Computed(
                tensors.logits, [span.stop - span.start for span in spans], self._device.to_host(tensors.rows)
            )

    def _compute(self, spans: list[Span[Any]], blocks: list[list[int]]) -> StepTensors:
        if self.graphs is not None:  # their decode reads whole blocks
            begun = [self._begun(span, own) for span, own in zip(spans, blocks, strict=True)]
            self._cache.clear(list(chain.from_iterable(begun)))
        if self.graphs is not None and all(span.samples and span.stop - span.start == 1 for span in spans):
            return self.graphs.forward(spans, blocks)
        slots = [self._slots(span, of_span) for span, of_span in zip(spans, blocks, strict=True)]
        return self._model.forward(spans, PagedStep.of(self._cache, slots))

    def _begun(self, span: Span[Any], blocks: list[int]) -> list[int]:
        """Those of the sequence's blocks whose first position is in this span."""
        size = self._cache.block_size
        return blocks[-(-span.start // size) : -(-span.stop // size)]

    def _slots(self, span: Span[Any], blocks: list[int]) -> SequenceSlots:
        size = self._cache.block_size
        firsts = torch.tensor(blocks, dtype=torch.int64) * size
        slots = (firsts[:, None] + torch.arange(size)).flatten()[: span.stop]
        return SequenceSlots(slots.to(self._device.torch_device), span.stop - span.start)
