"""The protocol of a model on the `autoregressive` engine: a transformer that writes one position after the other.

In: spans, each a stretch of positions of one request. Out: logits, named rows per position, and StageOutputs.
Does not know: scheduling, the KV cache's blocks, lanes, processes.
"""

from dataclasses import dataclass, field
from typing import Protocol

import torch

from antiphon.messages.params import SamplingParams
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.engine.sequence_model import Accepted as Accepted
from antiphon.stage.engine.sequence_model import SequenceModel, State
from antiphon.stage.engine.sequence_model import Span as Span
from antiphon.stage.request import StageRequest
from antiphon.stage.runner.device import Device
from antiphon.stage.runner.paged_attention import PagedStep


@dataclass(frozen=True)
class KVLayout:
    """What one position takes in the KV cache."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype


@dataclass(frozen=True)
class SamplingRules:
    """What the model adds to the request's own SamplingParams.

    prompt_ids: the prompt's tokens, if it is made of tokens; the repetition penalty counts them.
    """

    stop_ids: frozenset[int] = frozenset()
    suppressed_ids: tuple[int, ...] = ()
    min_new_tokens: int = 0
    prompt_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class StepTensors:
    """What a forward pass gives, on the device.

    logits: [num_sampling_spans, vocab_size], in the spans' order. rows: name -> [num_positions, ...] for the positions
    of all spans, in order; only what `accept` needs. They leave the device in one copy, while tokens are sampled.
    """

    logits: torch.Tensor
    rows: dict[str, torch.Tensor] = field(default_factory=dict)


class AutoregressiveModel(SequenceModel[State], Protocol[State]):
    """A causal transformer served by the autoregressive engine: a SequenceModel whose steps torch computes."""

    kv_layout: KVLayout

    def load(self, context: ModelContext, device: Device) -> None:
        """Load weights onto the device and set kv_layout."""

    def rules(self, request: StageRequest, state: State) -> SamplingRules:
        """Read once, before the first token is sampled."""

    def sampling(self, request: StageRequest, state: State) -> SamplingParams:
        """The sampling parameters of this stage for this request (usually request.params.sampling)."""

    def forward(self, spans: list[Span[State]], step: PagedStep) -> StepTensors:
        """Compute the spans' positions as one flat batch of length sum(stop - start), attending through `step`."""


class CapturableModel(AutoregressiveModel[State], Protocol[State]):
    """A model whose decode can be recorded on the device and replayed. Declared by StageSpec.captures_decode.

    A step in which every sequence computes one position and samples goes through these two methods in place of
    `forward`, on devices that record. The batch may be longer than the spans; what follows them is thrown away.
    """

    captures_decode: bool
    """Set by `load`: False if the checkpoint has work that depends on values, such as tokens sorted by expert."""

    def decode_inputs(self, spans: list[Span[State]]) -> dict[str, torch.Tensor]:
        """The inputs of the spans' positions, on the host: name -> [num_spans, ...], row shapes always the same."""

    def decode(self, inputs: dict[str, torch.Tensor], step: PagedStep) -> StepTensors:
        """Logits and rows of every position of `inputs`, which are on the device: [batch_size, ...].

        It runs when a shape first occurs, and then only its device work is repeated, on the same tensors: no value
        may be read, no shape may depend on one, and `inputs` must not be changed.
        """
