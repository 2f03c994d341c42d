"""code2wav: spectral frames -> 24 kHz PCM, chunk by chunk, with the vocoder's state carried per request.

In: `params` float32 [num_frames, 3006], `sentence_end` uint8 [num_frames], `num_tokens` int64 [1].
Out: AudioChunk.
"""

import secrets

from antiphon.errors import AntiphonError
from antiphon.messages.client import AudioChunk, Usage
from antiphon.models.voice.pipeline import SAMPLE_RATE
from antiphon.models.voice.vocoder import StreamingVocoder, to_pcm16
from antiphon.stage.engine.generation_model import ModelContext, Slot
from antiphon.stage.engine.guard import one_by_one
from antiphon.stage.request import StageOutput, StageRequest

HOP = 300  # samples per frame


class VocoderState:
    """One request's vocoder and how much it has made."""

    def __init__(self, seed: int) -> None:
        self.vocoder = StreamingVocoder(seed)
        self.num_samples = 0


class Code2Wav:
    """The vocoder has no weights: every parameter is in the frames."""

    rows_per_step: int | None = 64  # 0.8 s of audio, about 3 ms of work

    def load(self, context: ModelContext) -> None:
        """Nothing to load."""

    def open(self, request: StageRequest) -> VocoderState:
        """A vocoder whose noise the request's seed fixes."""
        seed = request.params.speech.seed
        return VocoderState(secrets.randbits(32) if seed is None else seed)

    def has_pending(self, state: VocoderState) -> bool:
        """Never: the vocoder holds back its look-ahead only, which the next frames complete."""
        return False

    def step(self, batch: list[Slot[VocoderState]]) -> list[StageOutput | AntiphonError]:
        """Turn each slot's new frames into samples."""
        return one_by_one(batch, self._step)

    def _step(self, slot: Slot[VocoderState]) -> StageOutput:
        state, params = slot.state, slot.row("params")
        sentence_end = slot.row("sentence_end")
        chunks: tuple[AudioChunk, ...] = ()
        if params is not None and sentence_end is not None:
            samples = state.vocoder.push(params, sentence_end)
            state.num_samples += len(samples)
            chunks = (AudioChunk(to_pcm16(samples), SAMPLE_RATE),) if len(samples) else ()
        return StageOutput(client=chunks, finished=slot.ended, usage=_usage(slot))


def _usage(slot: Slot[VocoderState]) -> Usage:
    """Tokens in are the phonemes that the talker spoke, tokens out the frames made of them."""
    num_tokens = slot.request.input.whole.get("num_tokens")
    num_samples = slot.state.num_samples
    return Usage(0 if num_tokens is None else int(num_tokens[0]), num_samples // HOP, num_samples)
