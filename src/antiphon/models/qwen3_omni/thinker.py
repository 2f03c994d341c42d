"""The thinker on the autoregressive engine: a prompt of text, sound and pictures -> text, and two rows per position.

In: `prompt` uint8 [num_bytes] (see prompts.py). Out: text or token ids to the client; `embed` and `hidden`
[n, hidden_size] of every position, and `layout` once, to the talker if one is bound.
Does not know: what the talker does with them.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import torch
from tokenizers.decoders import DecodeStream
from transformers import Qwen3OmniMoeThinkerForConditionalGeneration

from antiphon.errors import InvalidRequestError, UnsupportedOptionError
from antiphon.messages.client import ClientData, TextDelta, TokenDelta, Usage
from antiphon.messages.params import SamplingParams
from antiphon.models.hf_text.stop_strings import StopStrings
from antiphon.models.qwen3_omni import prompt_inputs, prompts
from antiphon.models.qwen3_omni.checkpoint import Checkpoint
from antiphon.models.qwen3_omni.conversation import ConversationReader
from antiphon.models.qwen3_omni.layout import TalkerLayout
from antiphon.models.qwen3_omni.prompt_inputs import PromptEncoder, Tensors, ThinkerPrompt
from antiphon.models.qwen3_omni.spoken_rows import SpokenRows
from antiphon.stage.engine.autoregressive_model import Accepted, KVLayout, SamplingRules, Span, StepTensors
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.held_logprobs import HeldLogprobs
from antiphon.stage.request import Arrays, StageOutput, StageRequest
from antiphon.stage.runner.device import Device
from antiphon.stage.runner.paged_attention import NAME, PagedStep


@dataclass
class ThinkerState:
    """A prompt and the tokens that followed it. `layout` is None once it has been handed off.

    spoken: what holds rows back from the talker, where a stop text may come.
    """

    stop_strings: StopStrings
    stream: DecodeStream
    held: HeldLogprobs = field(default_factory=HeldLogprobs)
    prompt_ids: list[int] = field(default_factory=list)
    new_ids: list[int] = field(default_factory=list)
    prompt: ThinkerPrompt | None = None
    layout: np.ndarray | None = None
    spoken: SpokenRows | None = None


class Thinker:
    """Owns the thinker's network and the checkpoint's processor."""

    kv_layout: KVLayout

    def load(self, context: ModelContext, device: Device) -> None:
        """Load thinker.* of the checkpoint and, if it has one, the processor; ConfigError if it is not complete."""
        checkpoint = Checkpoint(context.model_path)
        config = checkpoint.config.thinker_config
        config.text_config._attn_implementation = NAME
        self._network: Any = checkpoint.load(
            Qwen3OmniMoeThinkerForConditionalGeneration, config, "thinker.", device.torch_device, device.dtype
        )
        self._text = self._network.model.language_model
        self._encoder = PromptEncoder(self._network)
        self._reader = ConversationReader.load(checkpoint.path)
        self._talker_layout = TalkerLayout(checkpoint.config)
        self._accept_layer = int(checkpoint.config.talker_config.accept_hidden_layer)
        self._stop_ids = frozenset({checkpoint.config.im_end_token_id})
        self._max_positions = int(config.text_config.max_position_embeddings)
        layer = self._text.layers[0].self_attn
        self.kv_layout = KVLayout(
            len(self._text.layers), config.text_config.num_key_value_heads, layer.head_dim, device.dtype
        )
        self._device = device.torch_device

    def open(self, request: StageRequest) -> ThinkerState:
        """No prompt yet."""
        sampling = request.params.sampling
        if self._reader is None and (sampling.stop or sampling.logprobs is not None):
            param = "stop" if sampling.stop else "logprobs"
            raise UnsupportedOptionError(f"`{param}`: this checkpoint has no tokenizer, so no text", param=param)
        return ThinkerState(StopStrings(request.params.sampling.stop), DecodeStream(skip_special_tokens=True))

    def receive(self, request: StageRequest, state: ThinkerState, rows: dict[str, Arrays], ended: bool) -> None:
        """The whole prompt comes at once (its edge starts at ALL_CHUNKS); its media are seen when it is computed."""
        document = next((arrays[prompts.KEY] for arrays in rows.values() if arrays), None)
        if document is None:
            return
        tensors, use_audio_in_video = self._read(prompts.decode(document))
        ids = tensors["input_ids"]
        if len(ids) >= self._max_positions:
            raise InvalidRequestError(
                f"the prompt has {len(ids)} tokens; the model's context is {self._max_positions}",
                param="messages",
                code="context_length_exceeded",
            )
        if "talker" in request.consumers:
            state.layout = self._talker_layout.of_prompt(ids.numpy(), prompt_inputs.media_of(tensors))
        state.prompt = self._encoder.lay_out(tensors, use_audio_in_video=use_audio_in_video)
        state.prompt_ids = ids.tolist()
        if "talker" in request.consumers and request.params.sampling.stop:
            state.spoken = SpokenRows(len(state.prompt_ids))

    def rules(self, request: StageRequest, state: ThinkerState) -> SamplingRules:
        """The end of a turn ends the answer."""
        return SamplingRules(stop_ids=self._stop_ids, prompt_ids=tuple(state.prompt_ids))

    def sampling(self, request: StageRequest, state: ThinkerState) -> SamplingParams:
        """As asked, but never beyond the model's context."""
        params = request.params.sampling
        room = self._max_positions - len(state.prompt_ids)
        return msgspec.structs.replace(params, max_tokens=min(params.max_tokens, room))

    def num_positions(self, state: ThinkerState) -> int:
        """Every token so far."""
        return len(state.prompt_ids) + len(state.new_ids)

    def forward(self, spans: list[Span[ThinkerState]], step: PagedStep) -> StepTensors:
        """One pass over all spans; the first and the accepted layer's hidden states for requests that will speak.

        Before it, one pass of each tower over the media of those prompts that begin with this step.
        """
        self._see([span.state for span in spans])
        speaks = any("talker" in span.request.consumers for span in spans)
        is_visual = torch.cat([_is_visual(span, self._device) for span in spans])
        has_visual = bool(is_visual.any())
        output = self._text(
            inputs_embeds=torch.cat([self._embeds(span) for span in spans])[None],
            position_ids=torch.cat([_positions(span, self._device) for span in spans], dim=1)[:, None],
            visual_pos_masks=is_visual[None] if has_visual else None,
            deepstack_visual_embeds=_deepstack(spans) if has_visual else None,
            output_hidden_states=[0, self._accept_layer] if speaks else False,
            use_cache=False,
            paged_step=step,
        )
        lasts = np.cumsum([span.stop - span.start for span in spans]) - 1
        sampled = [int(last) for last, span in zip(lasts, spans, strict=True) if span.samples]
        logits = self._network.lm_head(output.last_hidden_state[0, sampled])
        if not speaks:
            return StepTensors(logits)
        layers = output.hidden_states
        return StepTensors(logits, {"embed": layers[0][0], "hidden": layers[self._accept_layer][0]})

    def accept(self, batch: list[Accepted[ThinkerState]]) -> list[StageOutput]:
        """Append each token and give out the text it completes, and the rows of the step's positions."""
        return [self._accept(entry) for entry in batch]

    def _read(self, prompt: prompts.Prompt) -> tuple[Tensors, bool]:
        match prompt:
            case prompts.TokenizedPrompt():
                tensors = {name: torch.from_numpy(tensor.array()) for name, tensor in prompt.tensors.items()}
                prompt_inputs.check(tensors, self._network.config.text_config.vocab_size)
                return tensors, prompt.use_audio_in_video
            case prompts.Conversation():
                if self._reader is None:
                    raise InvalidRequestError("this checkpoint has no processor; send token ids", param="messages")
                return self._reader.tensors(prompt)

    def _see(self, states: list[ThinkerState]) -> None:
        new = [state for state in states if state.prompt is not None and state.prompt.embeds is None]
        if new:
            seen = self._encoder.see([state.prompt for state in new if state.prompt is not None])
            for state, prompt in zip(new, seen, strict=True):
                state.prompt = prompt

    def _embeds(self, span: Span[ThinkerState]) -> torch.Tensor:
        """[stop - start, hidden_size]."""
        state = span.state
        assert state.prompt is not None and state.prompt.embeds is not None, f"{span.request.request_id} is not seen"
        num_prompt = len(state.prompt_ids)
        new_ids = state.new_ids[max(0, span.start - num_prompt) : max(0, span.stop - num_prompt)]
        tokens = torch.tensor(new_ids, dtype=torch.int64, device=self._device)
        return torch.cat((state.prompt.embeds[span.start : span.stop], self._text.embed_tokens(tokens)))

    def _accept(self, entry: Accepted[ThinkerState]) -> StageOutput:
        state, token = entry.state, entry.token
        finished = entry.finish_reason is not None
        client: tuple[ClientData, ...] = ()
        if token is not None:
            state.new_ids.append(token)
            client = self._answer(entry, token, is_last=finished)
            finished = finished or state.stop_strings.has_stopped
        return StageOutput(
            handoff=_handoff(entry),
            client=client,
            finished=finished,
            finish_reason="stop" if state.stop_strings.has_stopped else entry.finish_reason or "stop",
            usage=Usage(len(state.prompt_ids), len(state.new_ids)),
        )

    def _answer(self, entry: Accepted[ThinkerState], token: int, *, is_last: bool) -> tuple[ClientData, ...]:
        """What the client gets of a token: text, or the token where the checkpoint has no tokenizer."""
        state, is_end = entry.state, entry.finish_reason == "stop"
        if self._reader is None:
            return (TokenDelta([token]),)
        piece = "" if is_end else self._reader.piece(state.stream, token)
        text = state.stop_strings.push(piece)
        is_last = is_last or state.stop_strings.has_stopped
        if is_last:
            text += state.stop_strings.finish()
        if entry.scores is not None and not is_end:
            state.held.push(self._reader.logprob(token, entry.scores), len(piece))
        if state.spoken is not None:
            state.spoken.token(len(piece), len(text))
        return (TextDelta(text, state.held.release(len(text), is_last=is_last)),) if text else ()


def _handoff(entry: Accepted[ThinkerState]) -> dict[str, Arrays]:
    if "talker" not in entry.request.consumers or not len(entry.rows["embed"]):
        return {}
    rows: Arrays = {"embed": entry.rows["embed"], "hidden": entry.rows["hidden"]}
    if entry.state.spoken is not None:
        rows = entry.state.spoken.take(rows)
    if not len(rows["embed"]):
        return {}
    if entry.state.layout is not None:
        rows["layout"] = entry.state.layout
        entry.state.layout = None
    return {"talker": rows}


def _positions(span: Span[ThinkerState], device: torch.device) -> torch.Tensor:
    """[3, stop - start] float32: the prompt's, then one further on every axis for each token."""
    prompt = span.state.prompt
    assert prompt is not None
    num_prompt = prompt.positions.shape[1]
    steps = torch.arange(max(span.start, num_prompt), max(span.stop, num_prompt), device=device) - (num_prompt - 1)
    return torch.cat((prompt.positions[:, span.start : span.stop], prompt.positions[:, -1:] + steps), dim=1)


def _is_visual(span: Span[ThinkerState], device: torch.device) -> torch.Tensor:
    """[stop - start] bool."""
    prompt = span.state.prompt
    assert prompt is not None
    of_prompt = prompt.is_visual[span.start : span.stop]
    return torch.cat((of_prompt, torch.zeros(span.stop - span.start - len(of_prompt), dtype=torch.bool, device=device)))


def _deepstack(spans: list[Span[ThinkerState]]) -> list[torch.Tensor]:
    """Per layer, the features of the step's visual positions in order: [num_visual, hidden_size]."""
    pieces = []
    for span in spans:
        prompt = span.state.prompt
        assert prompt is not None
        first, stop = (int(prompt.is_visual[:end].sum()) for end in (span.start, span.stop))
        if stop > first:
            pieces.append([feature[first:stop] for feature in prompt.deepstack])
    return [torch.cat(of_layer) for of_layer in zip(*pieces, strict=True)]
