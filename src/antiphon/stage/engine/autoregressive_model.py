"""The protocol of a model on the `autoregressive` engine: a transformer that writes one position after the other.

In: spans, each a stretch of positions of one request. Out: logits, named rows per position, and StageOutputs.
Does not know: scheduling, the KV cache's blocks, lanes, processes.

One request is one sequence of positions 0, 1, 2, ... The model's state knows the input of every position that can
be computed now: the prompt's, and one more for each token it has accepted (if that needs a row from upstream which
has not come, the sequence waits). The engine decides which positions a step computes; after a preemption it computes
old positions again, from the same inputs, and does not report their rows a second time.
"""

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import torch

from antiphon.messages.params import SamplingParams
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.request import Arrays, StageOutput, StageRequest
from antiphon.stage.runner.device import Device
from antiphon.stage.runner.paged_attention import PagedStep

State = TypeVar("State")


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
class Span(Generic[State]):
    """Positions [start, stop) of one sequence in this step. `samples`: a token follows from the last one."""

    request: StageRequest
    state: State
    start: int
    stop: int
    samples: bool


@dataclass(frozen=True)
class StepTensors:
    """What a forward pass gives, on the device.

    logits: [num_sampling_spans, vocab_size], in the spans' order. rows: name -> [num_positions, ...] for the positions
    of all spans, in order; only what `accept` needs. They leave the device in one copy, while tokens are sampled.
    """

    logits: torch.Tensor
    rows: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Accepted(Generic[State]):
    """What a step made for one sequence.

    rows: name -> [n, ...] on the host, for the span's positions that were not reported before; `first_row` is the
    position of the first. token: the sampled id, or None if the span did not sample. finish_reason: set if the
    token ends the sequence ("stop": a stop id, which `token` then is; "length").
    """

    request: StageRequest
    state: State
    rows: Arrays
    first_row: int
    token: int | None
    finish_reason: str | None


class AutoregressiveModel(Protocol[State]):
    """A causal transformer served by the autoregressive engine."""

    kv_layout: KVLayout

    def load(self, context: ModelContext, device: Device) -> None:
        """Load weights onto the device and set kv_layout."""

    def open(self, request: StageRequest) -> State:
        """The state of a new request. AntiphonError if it can never be served."""

    def receive(self, request: StageRequest, state: State, rows: dict[str, Arrays], ended: bool) -> None:
        """Input rows have come: in-edge's producer -> key -> [n, ...], valid in this call only (copy what stays).

        ended: no more will come. Called at least once before the first span.
        """

    def rules(self, request: StageRequest, state: State) -> SamplingRules:
        """Read once, before the first token is sampled."""

    def sampling(self, request: StageRequest, state: State) -> SamplingParams:
        """The sampling parameters of this stage for this request (usually request.params.sampling)."""

    def num_positions(self, state: State) -> int:
        """Positions whose input is known now; 0 until the prompt is complete."""

    def forward(self, spans: list[Span[State]], step: PagedStep) -> StepTensors:
        """Compute the spans' positions as one flat batch of length sum(stop - start), attending through `step`."""

    def accept(self, batch: list[Accepted[State]]) -> list[StageOutput]:
        """Take in what the step made, one entry per span: append tokens to the states, say what goes where.

        Where finish_reason is set the output must be `finished`; it may be so elsewhere too, to end a sequence for a
        reason of the model's own (a stop string). An exception makes the engine hand the entries over again one by
        one, so a state may change only when the call can no longer fail.
        """


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
