"""The talker on the autoregressive engine: the thinker's rows as they come -> codec frames.

In: `embed` and `hidden` [n, thinker hidden size] of every thinker position, `layout` float32 [m, 5] once.
Out: `codes` int16 [n, num_code_groups] to code2wav, one row per frame. Its own hidden states stay here.
Does not know: the thinker's tokens, audio.

The prompt is known once the first word's row has come. After that each position's input is the sum of a frame's code
embeddings and the next word's embedding, which may still have to come: then the sequence waits. When the thinker has
ended, the end marker follows its last word, and padding follows that.
"""

from dataclasses import dataclass, field

import numpy as np
import torch

from antiphon.errors import InvalidRequestError, StageError
from antiphon.messages.client import Usage
from antiphon.messages.params import SamplingParams
from antiphon.models.qwen3_omni.checkpoint import Checkpoint, TalkerNetwork
from antiphon.models.qwen3_omni.residual_codes import predict, residual_sampler
from antiphon.models.qwen3_omni.talker_prompt import PromptRows, TalkerPrompt
from antiphon.stage.engine.autoregressive_model import Accepted, KVLayout, SamplingRules, Span, StepTensors
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.request import NOTHING, Arrays, StageOutput, StageRequest
from antiphon.stage.runner.device import Device
from antiphon.stage.runner.paged_attention import NAME, PagedStep
from antiphon.stage.runner.sampler import SequenceSampler

DEFAULT_VOICE = "ethan"
NUM_RESERVED_IDS = 1024
"""The last ids of the talker's vocabulary are no codes; of them only the end may be sampled."""


@dataclass
class TalkerState:
    """What has come from the thinker, and the inputs of the positions that can be computed.

    inputs: [hidden_size] each. words: rows to be spoken after the first one, projected. frame: the summed code
    embeddings of the frame that waits for its word. num_spoken: frames that got theirs.
    """

    speaker_id: int
    residual: SequenceSampler
    rows: PromptRows = field(default_factory=PromptRows)
    positions: torch.Tensor | None = None  # [3, num_prompt]
    inputs: list[torch.Tensor] = field(default_factory=list)
    words: list[torch.Tensor] = field(default_factory=list)
    has_ended: bool = False
    frame: torch.Tensor | None = None
    num_spoken: int = 0


class Talker:
    """Owns the talker's network, its code predictor, and three rows of the thinker's embeddings."""

    kv_layout: KVLayout

    def load(self, context: ModelContext, device: Device) -> None:
        """Load talker.* of the checkpoint; ConfigError if it is not complete."""
        checkpoint = Checkpoint(context.model_path)
        config = checkpoint.config.talker_config
        config.text_config._attn_implementation = NAME
        self._network = checkpoint.load(TalkerNetwork, config, "talker.", device.torch_device, device.dtype)
        self._config = config
        self._defaults = checkpoint.speech_defaults()
        self._speakers = {str(name).lower(): int(speaker) for name, speaker in (config.speaker_id or {}).items()}
        self._device, self._dtype = device.torch_device, device.dtype
        root = checkpoint.config
        markers = checkpoint.thinker_embeddings((root.tts_bos_token_id, root.tts_eos_token_id, root.tts_pad_token_id))
        with torch.inference_mode():
            projected = self._network.text_projection(markers.to(self._device, self._dtype))
        self._bos, self._eos, self._pad = projected.unbind()
        self._prompt = TalkerPrompt(self._network, bos=self._bos, pad=self._pad)
        attention = self._network.model.layers[0].self_attn
        self.kv_layout = KVLayout(
            len(self._network.model.layers), config.text_config.num_key_value_heads, attention.head_dim, device.dtype
        )

    def open(self, request: StageRequest) -> TalkerState:
        """InvalidRequestError if the checkpoint has no such speaker."""
        default = DEFAULT_VOICE if DEFAULT_VOICE in self._speakers else next(iter(self._speakers), "")
        name = request.params.speech.voice.lower() or default
        if name not in self._speakers:
            raise InvalidRequestError(
                f"`voice`: there is no voice {name!r}; use one of {', '.join(self._speakers) or 'none'}", param="voice"
            )
        residual = residual_sampler(is_greedy=_is_greedy(request), seed=_seed(request))
        return TalkerState(self._speakers[name], residual)

    def receive(self, request: StageRequest, state: TalkerState, rows: dict[str, Arrays], ended: bool) -> None:
        """Project what has come; make the prompt once it is complete."""
        state.has_ended = ended
        layout = request.input.whole.get("layout")
        with torch.inference_mode():
            for arrays in rows.values():
                if arrays:
                    state.rows.add(self._tensor(arrays["embed"]), self._tensor(arrays["hidden"]))
            if state.positions is None and layout is not None and state.rows.reach(layout):
                state.positions = torch.from_numpy(layout[:, 2:].T.copy()).to(self._device)
                state.inputs += self._prompt.inputs(layout, state.rows, state.speaker_id).unbind()
            if state.positions is not None and (spoken := state.rows.take_words()) is not None:
                state.words += self._network.text_projection(spoken).unbind()
            self._resolve(state)
        if ended and state.positions is None:
            raise StageError(
                f"{request.request_id}: the thinker ended without a word, so there is nothing to speak", code="no_audio"
            )

    def rules(self, request: StageRequest, state: TalkerState) -> SamplingRules:
        """Codes only, and the end."""
        size, end = self._config.text_config.vocab_size, self._config.codec_eos_token_id
        suppressed = tuple(token for token in range(size - NUM_RESERVED_IDS, size) if token != end)
        return SamplingRules(frozenset({end}), suppressed, self._defaults.talker_min_new_tokens)

    def sampling(self, request: StageRequest, state: TalkerState) -> SamplingParams:
        """The checkpoint's own way of speaking; greedy where the request asks the thinker to be."""
        defaults = self._defaults
        return SamplingParams(
            max_tokens=defaults.talker_max_new_tokens,
            temperature=0.0 if _is_greedy(request) else defaults.talker_temperature,
            top_p=defaults.talker_top_p,
            top_k=defaults.talker_top_k,
            min_p=0.0,
            repetition_penalty=defaults.talker_repetition_penalty,
            seed=_seed(request),
        )

    def num_positions(self, state: TalkerState) -> int:
        """The prompt's positions, and one per frame whose word has come."""
        return len(state.inputs)

    def forward(self, spans: list[Span[TalkerState]], step: PagedStep) -> StepTensors:
        """One pass over all spans; the last hidden state is what the code predictor starts from."""
        inputs = [row for span in spans for row in span.state.inputs[span.start : span.stop]]
        output = self._network.model(
            inputs_embeds=torch.stack(inputs)[None],
            position_ids=torch.cat([_positions(span) for span in spans], dim=1)[:, None],
            use_cache=False,
            paged_step=step,
        )
        hidden = output.last_hidden_state[0]
        lasts = np.cumsum([span.stop - span.start for span in spans]) - 1
        sampled = [int(last) for last, span in zip(lasts, spans, strict=True) if span.samples]
        return StepTensors(self._network.codec_head(hidden[sampled]), {"hidden": hidden})

    def accept(self, batch: list[Accepted[TalkerState]]) -> list[StageOutput]:
        """Make a frame of every code that does not end its sequence (as in the reference, the last code makes none)."""
        framed = [entry for entry in batch if entry.token is not None and entry.finish_reason is None]
        codes = dict(zip(map(id, framed), self._frames(framed), strict=True)) if framed else {}
        return [self._output(entry, codes.get(id(entry))) for entry in batch]

    def _frames(self, entries: list[Accepted[TalkerState]]) -> list[np.ndarray]:
        """One [1, num_code_groups] int16 array per entry; its state gets the frame's embedding."""
        hidden = self._tensor(np.stack([entry.rows["hidden"][-1] for entry in entries]))
        tokens = [entry.token for entry in entries if entry.token is not None]
        with torch.inference_mode():
            frames = predict(self._network, hidden, tokens, [entry.state.residual for entry in entries])
            for entry, embed in zip(entries, frames.embeds, strict=True):
                entry.state.frame = embed
                self._resolve(entry.state)
        return list(frames.codes.numpy().astype(np.int16)[:, None])

    def _output(self, entry: Accepted[TalkerState], codes: np.ndarray | None) -> StageOutput:
        if entry.finish_reason is not None:
            usage = Usage(num_output_tokens=entry.state.num_spoken)
            return StageOutput(finished=True, finish_reason=entry.finish_reason, usage=usage)
        return NOTHING if codes is None else StageOutput(handoff={"code2wav": {"codes": codes}})

    def _resolve(self, state: TalkerState) -> None:
        """Give the waiting frame its word, if that has come or will not come any more."""
        if state.frame is None:
            return
        if state.num_spoken < len(state.words):
            word = state.words[state.num_spoken]
        elif state.has_ended:
            word = self._eos if state.num_spoken == len(state.words) else self._pad
        else:
            return
        state.inputs.append(state.frame + word)
        state.frame = None
        state.num_spoken += 1

    def _tensor(self, rows: np.ndarray) -> torch.Tensor:
        """A copy on the device, in the weights' dtype. uint16 rows are the bits of bfloat16."""
        tensor = torch.from_numpy(np.array(rows))
        if tensor.dtype is torch.uint16:
            tensor = tensor.view(torch.bfloat16)
        return tensor.to(self._device, self._dtype)


def _positions(span: Span[TalkerState]) -> torch.Tensor:
    """[3, stop - start] float32: the prompt's, then one further on every axis for each frame."""
    positions = span.state.positions
    assert positions is not None, f"{span.request.request_id} was scheduled before its prompt came"
    num_prompt = positions.shape[1]
    steps = torch.arange(max(span.start, num_prompt), max(span.stop, num_prompt), device=positions.device) - (
        num_prompt - 1
    )
    return torch.cat((positions[:, span.start : span.stop], positions[:, -1:] + steps), dim=1)


def _is_greedy(request: StageRequest) -> bool:
    return request.params.sampling.temperature == 0


def _seed(request: StageRequest) -> int | None:
    speech, sampling = request.params.speech, request.params.sampling
    return sampling.seed if speech.seed is None else speech.seed
