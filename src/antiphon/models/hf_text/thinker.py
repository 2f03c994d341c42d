"""A decoder-only `transformers` checkpoint on the autoregressive engine, as a thinker.

In: `messages` uint8 [num_bytes], a Conversation. Out: `text`, to the client and, if one is bound,
to the talker. The checkpoint is a folder or a GGUF file; "" is the packaged SmolLM2-135M.
"""

from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from tokenizers.decoders import DecodeStream
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from antiphon.errors import ConfigError, InvalidRequestError
from antiphon.messages.client import CalledTool, TextDelta, Usage
from antiphon.messages.conversation import Conversation
from antiphon.messages.params import SamplingParams
from antiphon.models.hf_text.chat_template import ChatTemplate
from antiphon.models.hf_text.pipeline import TOOL_CALLS
from antiphon.models.hf_text.stop_strings import StopStrings
from antiphon.models.hf_text.token_texts import TokenTexts
from antiphon.models.hf_text.tool_calls import ToolCallParser
from antiphon.models.voice.weights import model_path, smollm2_gguf
from antiphon.stage.engine.autoregressive_model import Accepted, KVLayout, SamplingRules, Span, StepTensors
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.held_logprobs import HeldLogprobs
from antiphon.stage.request import Arrays, StageOutput, StageRequest
from antiphon.stage.runner.device import Device
from antiphon.stage.runner.paged_attention import NAME, PagedStep


@dataclass
class ThinkerState:
    """A conversation's tokens: the prompt's, then those that were sampled."""

    stop_strings: StopStrings
    decoder: DecodeStream
    calls: ToolCallParser | None = None
    held: HeldLogprobs = field(default_factory=HeldLogprobs)
    ids: list[int] = field(default_factory=list)
    num_prompt: int = 0


class Thinker:
    """Owns the network and its tokenizer."""

    kv_layout: KVLayout
    captures_decode: bool

    def load(self, context: ModelContext, device: Device) -> None:
        """Load network, tokenizer and generation config; ConfigError if the checkpoint is not usable."""
        self._reads_calls = context.options.get(TOOL_CALLS.name, "none") == "hermes"
        path = Path(model_path(context.model_path, smollm2_gguf()))
        try:
            self.tokenizer, self.network = _from_pretrained(path, device.dtype)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError([f"{path} is no checkpoint that can be served: {error}"]) from error
        self.template = ChatTemplate(self.tokenizer) if self.tokenizer.chat_template is not None else None
        self._token_texts = TokenTexts(self.tokenizer)
        device.place(self.network)
        config = self.network.config.get_text_config()
        self.kv_layout = _kv_layout(config, device.dtype)
        self.captures_decode = _has_fixed_work(config)
        self._max_positions = int(config.max_position_embeddings)
        eos = self.network.generation_config.eos_token_id
        self._stop_ids = frozenset([eos] if isinstance(eos, int) else eos or [self.tokenizer.eos_token_id])
        self._device = device.torch_device

    def open(self, request: StageRequest) -> ThinkerState:
        """No tokens yet."""
        return ThinkerState(StopStrings(request.params.sampling.stop), DecodeStream(skip_special_tokens=True))

    def receive(self, request: StageRequest, state: ThinkerState, rows: dict[str, Arrays], ended: bool) -> None:
        """The whole conversation comes at once (its edges start at ALL_CHUNKS)."""
        document = next((arrays["messages"] for arrays in rows.values() if arrays), None)
        if document is None:
            return
        conversation = Conversation.decode(document)
        state.ids = self.tokenize(conversation)
        state.calls = ToolCallParser() if conversation.tools and self._reads_calls else None
        state.num_prompt = len(state.ids)
        if not state.ids:
            raise InvalidRequestError("the conversation has no tokens; send a message with text", param="messages")
        if state.num_prompt >= self._max_positions:
            raise InvalidRequestError(
                f"the conversation has {state.num_prompt} tokens; the model's context is {self._max_positions}",
                param="messages",
                code="context_length_exceeded",
            )

    def rules(self, request: StageRequest, state: ThinkerState) -> SamplingRules:
        """The checkpoint's end tokens."""
        return SamplingRules(stop_ids=self._stop_ids, prompt_ids=tuple(state.ids[: state.num_prompt]))

    def sampling(self, request: StageRequest, state: ThinkerState) -> SamplingParams:
        """As asked, but never beyond the model's context."""
        params = request.params.sampling
        room = self._max_positions - state.num_prompt
        return msgspec.structs.replace(params, max_tokens=min(params.max_tokens, room))

    def num_positions(self, state: ThinkerState) -> int:
        """Every token so far."""
        return len(state.ids)

    def forward(self, spans: list[Span[ThinkerState]], step: PagedStep) -> StepTensors:
        """One pass over all spans; logits at the last position of those that sample."""
        ids = [token for span in spans for token in span.state.ids[span.start : span.stop]]
        positions = [position for span in spans for position in range(span.start, span.stop)]
        lasts = np.cumsum([span.stop - span.start for span in spans]) - 1
        sampled = [int(last) for last, span in zip(lasts, spans, strict=True) if span.samples]
        output = self.network(
            input_ids=torch.tensor([ids], device=self._device),
            position_ids=torch.tensor([positions], device=self._device),
            use_cache=False,
            logits_to_keep=torch.tensor(sampled, dtype=torch.int64, device=self._device),
            paged_step=step,
        )
        return StepTensors(logits=output.logits[0])

    def decode_inputs(self, spans: list[Span[ThinkerState]]) -> dict[str, torch.Tensor]:
        """`ids` and `positions`, [num_spans] int64."""
        return {
            "ids": torch.tensor([span.state.ids[span.start] for span in spans]),
            "positions": torch.tensor([span.start for span in spans]),
        }

    def decode(self, inputs: dict[str, torch.Tensor], step: PagedStep) -> StepTensors:
        """One token of every sequence, as one flat batch."""
        output = self.network(
            input_ids=inputs["ids"][None], position_ids=inputs["positions"][None], use_cache=False, paged_step=step
        )
        return StepTensors(logits=output.logits[0])

    def accept(self, batch: list[Accepted[ThinkerState]]) -> list[StageOutput]:
        """Append each token and give out the text it completes."""
        decoded = [self._decode(entry) for entry in batch]
        return [self._accept(entry, *pair) for entry, pair in zip(batch, decoded, strict=True)]

    def tokenize(self, conversation: Conversation) -> list[int]:
        """The conversation's tokens, up to where the answer begins."""
        if self.template is None:
            return list(self.tokenizer("\n".join(turn.content for turn in conversation.turns))["input_ids"])
        return list(self.tokenizer(self.template.render(conversation), add_special_tokens=False)["input_ids"])

    def _decode(self, entry: Accepted[ThinkerState]) -> tuple[DecodeStream, str]:
        """A decoder that has taken the entry's token, and the text that it completes."""
        decoder = copy(entry.state.decoder)
        if entry.token is None or entry.finish_reason == "stop":
            return decoder, ""
        return decoder, decoder.step(self.tokenizer.backend_tokenizer, entry.token) or ""

    def _accept(self, entry: Accepted[ThinkerState], decoder: DecodeStream, piece: str) -> StageOutput:
        state, token = entry.state, entry.token
        if token is None:
            return StageOutput()
        scored = None
        if entry.scores is not None and entry.finish_reason != "stop":
            scored = self._token_texts.logprob(token, entry.scores)
        state.ids.append(token)
        state.decoder = decoder
        text = state.stop_strings.push(piece)
        finished = entry.finish_reason is not None or state.stop_strings.has_stopped
        if finished:
            text += state.stop_strings.finish()
        if scored is not None:
            state.held.push(scored, len(piece))
        return self._output(entry, text, finished)

    def _output(self, entry: Accepted[ThinkerState], text: str, finished: bool) -> StageOutput:
        state = entry.state
        logprobs = state.held.release(len(text), is_last=finished)
        calls: list[CalledTool] = []
        if state.calls is not None:
            text, calls = state.calls.push(text)
            if finished:
                rest, last_calls = state.calls.finish()
                text, calls = text + rest, calls + last_calls
        handoff = {}
        if text and "talker" in entry.request.consumers:
            handoff = {"talker": {"text": np.frombuffer(text.encode(), np.uint8)}}
        return StageOutput(
            handoff=handoff,
            client=(TextDelta(text, logprobs), *calls) if text else tuple(calls),
            finished=finished,
            finish_reason=_finish_reason(entry),
            usage=Usage(state.num_prompt, len(state.ids) - state.num_prompt),
        )


def _finish_reason(entry: Accepted[ThinkerState]) -> str:
    state = entry.state
    if entry.finish_reason == "length" and not state.stop_strings.has_stopped:
        return "length"
    return "tool_calls" if state.calls is not None and state.calls.num_calls else "stop"


def _from_pretrained(path: Path, dtype: torch.dtype) -> tuple[PreTrainedTokenizerFast, PreTrainedModel]:
    folder, gguf = (str(path.parent), path.name) if path.is_file() else (str(path), None)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf, local_files_only=True)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError("only fast tokenizers (tokenizer.json) are served")
    options = {"gguf_file": gguf, "dtype": dtype, "attn_implementation": NAME, "local_files_only": True}
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
    network, loading = loaded
    if loading["missing_keys"]:
        raise ValueError(f"it lacks the weights {', '.join(sorted(loading['missing_keys']))}")
    assert isinstance(network, PreTrainedModel)
    return tokenizer, network


def _kv_layout(config: PreTrainedConfig, dtype: torch.dtype) -> KVLayout:
    heads = int(config.num_attention_heads)
    given = config.to_dict()
    num_kv_heads = given.get("num_key_value_heads") or heads
    head_dim = given.get("head_dim") or config.hidden_size // heads
    return KVLayout(int(config.num_hidden_layers), num_kv_heads, head_dim, dtype)


def _has_fixed_work(config: PreTrainedConfig) -> bool:
    """False for experts that get tokens by value, and for rotary embeddings that change with the longest position."""
    given = config.to_dict()
    rope = given.get("rope_parameters") or {}
    by_layer_type = [rope, *(of_type for of_type in rope.values() if isinstance(of_type, dict))]
    grows = any(of_type.get("rope_type") in ("dynamic", "longrope") for of_type in by_layer_type)
    return not grows and not any("experts" in name and count for name, count in given.items())
