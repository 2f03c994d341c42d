"""The runner of the autoregressive engine: a step's spans -> one forward pass over the paged KV cache, and its tokens.

In: spans and the blocks of their sequences. Out: per span, a token if it samples, and its rows on the host.
Does not know: scheduling, lanes. One runner for every device; see device.py for what differs.
"""

import time
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import numpy as np
import torch

from antiphon.config.pipeline import StageSpec
from antiphon.stage.engine.autoregressive_model import AutoregressiveModel, CapturableModel, Span, StepTensors
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.engine.launched_step import HostStep
from antiphon.stage.engine.sequence_model import ComputedSpan, TokenScores
from antiphon.stage.request import Arrays
from antiphon.stage.runner.decode_graphs import DecodeGraphs
from antiphon.stage.runner.device import Device, HostCopy
from antiphon.stage.runner.paged_attention import PagedKVCache, PagedStep, SequenceSlots
from antiphon.stage.runner.sampler import SequenceSampler, sample_batch, scores_of


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
    """Owns the model, its KV cache, the samplers of its sequences, and the recordings of its decode if it has any."""

    graphs: DecodeGraphs | None
    """Set by `startup`."""

    def __init__(
        self,
        model: AutoregressiveModel[Any],
        device: Device,
        context: ModelContext,
        spec: StageSpec,
        *,
        block_size: int,
    ) -> None:
        self._model = model
        self._device = device
        self._context = context
        self._spec = spec
        self._block_size = block_size
        self._samplers: dict[str, SequenceSampler] = {}
        self.model_s = 0.0

    def startup(self) -> None:
        """Load the model and allocate the KV cache."""
        torch.set_num_threads(self._context.num_threads)
        self._model.load(self._context, self._device)
        layout = self._model.kv_layout
        self._cache = PagedKVCache(
            num_layers=layout.num_layers,
            num_blocks=self._spec.num_kv_blocks,
            block_size=self._block_size,
            num_kv_heads=layout.num_kv_heads,
            head_dim=layout.head_dim,
            dtype=layout.dtype,
            device=self._device.torch_device,
        )
        capturable = cast("CapturableModel[Any]", self._model) if self._spec.captures_decode else None
        is_recorded = capturable is not None and capturable.captures_decode and self._device.has_graphs
        self.graphs = (
            DecodeGraphs(capturable, self._device, self._cache) if capturable is not None and is_recorded else None
        )

    def launch(self, spans: list[Span[Any]], blocks: list[list[int]]) -> HostStep[ComputedSpan]:
        """One forward pass, and a token for each span that samples: the host waits for its device."""
        sampling = [span.request.request_id for span in spans if span.samples]
        samplers = [self._sampler(span) for span in spans if span.samples]
        began_s = time.perf_counter()
        computed = self.forward(spans, blocks)
        self.model_s += time.perf_counter() - began_s
        tokens = sample_batch(computed.logits, samplers)
        made = dict(zip(sampling, zip(tokens, scores_of(computed.logits, samplers, tokens), strict=True), strict=True))
        return HostStep(
            [
                self._computed(span.request.request_id, rows, made)
                for span, rows in zip(spans, computed.rows(), strict=True)
            ]
        )

    def fileno(self) -> None:
        """Every step is over when `launch` returns."""

    def forget(self, request_id: str) -> None:
        """Drop the sequence's sampler."""
        self._samplers.pop(request_id, None)

    def close(self) -> None:
        """Drop every sampler."""
        self._samplers.clear()

    def _computed(self, request_id: str, rows: Arrays, made: dict[str, tuple[int, TokenScores | None]]) -> ComputedSpan:
        if request_id not in made:
            return ComputedSpan(rows)
        token, scores = made[request_id]
        return ComputedSpan(rows, token, self._samplers[request_id].finish_reason(token), scores)

    def _sampler(self, span: Span[Any]) -> SequenceSampler:
        request, state = span.request, span.state
        if request.request_id not in self._samplers:
            rules = self._model.rules(request, state)
            self._samplers[request.request_id] = SequenceSampler(self._model.sampling(request, state), rules)
        return self._samplers[request.request_id]

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
