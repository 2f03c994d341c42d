"""The autoregressive stage of docs/examples/murmur.py: a small transformer of random weights; a token is a character.

In: `prompt` uint8 [num_bytes], ASCII. Out: text to the client, and `hidden` float32 [n, WIDTH] to the hummer, one row
per character written. Does not know: batches of the engine, the KV cache, what the hummer does.
"""

from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from antiphon.errors import InvalidRequestError
from antiphon.messages.client import TextDelta, Usage
from antiphon.messages.params import SamplingParams
from antiphon.stage.engine.autoregressive_model import Accepted, KVLayout, SamplingRules, Span, StepTensors
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.request import NOTHING, Arrays, StageOutput, StageRequest
from antiphon.stage.runner.device import Device
from antiphon.stage.runner.paged_attention import NAME, PagedStep

WIDTH, NUM_LAYERS, NUM_KV_HEADS, HEAD_DIM, MAX_POSITIONS = 32, 2, 2, 8, 512
END = ord("\n")
UNPRINTABLE = (*(code for code in range(32) if code != END), 127)


def make_network(attention: str) -> LlamaForCausalLM:
    """The same weights at every call. A real model loads a checkpoint."""
    sizes = {"vocab_size": 128, "hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": NUM_LAYERS}
    heads = {"num_attention_heads": 4, "num_key_value_heads": NUM_KV_HEADS, "head_dim": HEAD_DIM}
    config = LlamaConfig(**sizes, **heads, max_position_embeddings=MAX_POSITIONS, initializer_range=0.3)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


@dataclass
class WriterState:
    """A request's tokens: the prompt's, then those that were sampled. num_prompt is 0 until the prompt is complete."""

    ids: list[int] = field(default_factory=list)
    num_prompt: int = 0


class Writer:
    """Owns the network."""

    kv_layout: KVLayout

    def load(self, context: ModelContext, device: Device) -> None:
        """`context.model_path` would be the checkpoint."""
        self.network = make_network(NAME).to(device.dtype)
        device.place(self.network)
        self.kv_layout = KVLayout(NUM_LAYERS, NUM_KV_HEADS, HEAD_DIM, device.dtype)
        self.device = device.torch_device

    def open(self, request: StageRequest) -> WriterState:
        """No tokens yet."""
        return WriterState()

    def receive(self, request: StageRequest, state: WriterState, rows: dict[str, Arrays], ended: bool) -> None:
        """The prompt comes in pieces, cut anywhere."""
        state.ids += rows["client"].get("prompt", np.empty(0, np.uint8)).tolist()
        if ended:
            if not 0 < len(state.ids) < MAX_POSITIONS:
                raise InvalidRequestError(
                    f"{len(state.ids)} characters; 1 to {MAX_POSITIONS - 1} fit", param="messages"
                )
            state.num_prompt = len(state.ids)

    def rules(self, request: StageRequest, state: WriterState) -> SamplingRules:
        """A line's end is the answer's end."""
        return SamplingRules(frozenset({END}), UNPRINTABLE, prompt_ids=tuple(state.ids[: state.num_prompt]))

    def sampling(self, request: StageRequest, state: WriterState) -> SamplingParams:
        """As the client asked, but never beyond the network's context."""
        asked = request.params.sampling
        return msgspec.structs.replace(asked, max_tokens=min(asked.max_tokens, MAX_POSITIONS - state.num_prompt))

    def num_positions(self, state: WriterState) -> int:
        """Every token, once the prompt is complete."""
        return len(state.ids) if state.num_prompt else 0

    def forward(self, spans: list[Span[WriterState]], step: PagedStep) -> StepTensors:
        """All spans in one flat batch; logits where a token follows, hidden states of every position."""
        ids = [token for span in spans for token in span.state.ids[span.start : span.stop]]
        positions = [position for span in spans for position in range(span.start, span.stop)]
        output = self.network.model(
            input_ids=torch.tensor([ids], device=self.device),
            position_ids=torch.tensor([positions], device=self.device),
            use_cache=False,
            paged_step=step,
        )
        hidden = output.last_hidden_state[0]  # [num_positions, WIDTH]
        lasts = np.cumsum([span.stop - span.start for span in spans]) - 1
        sampled = [int(last) for last, span in zip(lasts, spans, strict=True) if span.samples]
        return StepTensors(self.network.lm_head(hidden[sampled]), {"hidden": hidden.float()})

    def accept(self, batch: list[Accepted[WriterState]]) -> list[StageOutput]:
        """Append each token; its character goes to the client, the row that it follows from to the hummer."""
        return [self._accept(entry) for entry in batch]

    def _accept(self, entry: Accepted[WriterState]) -> StageOutput:
        state, token = entry.state, entry.token
        if token is None:  # a piece of a long prompt
            return NOTHING
        state.ids.append(token)
        is_end = entry.finish_reason == "stop"
        return StageOutput(
            handoff={} if is_end else {"hummer": {"hidden": entry.rows["hidden"][-1:]}},
            client=() if is_end else (TextDelta(chr(token)),),
            finished=entry.finish_reason is not None,
            finish_reason=entry.finish_reason or "stop",
            usage=Usage(state.num_prompt, len(state.ids) - state.num_prompt),
        )
