"""code2wav: codec frames -> 24 kHz PCM, piece by piece, with the left context kept per request.

In: `codes` int16 [num_frames, num_quantizers]. Out: AudioChunk; StageError "no_audio" if no frame ever came.
Does not know: chunk plans, who made the codes.
"""

from dataclasses import dataclass

import numpy as np
import torch
from transformers import Qwen3OmniMoeCode2Wav

from antiphon.errors import StageError
from antiphon.messages.client import AudioChunk, Usage
from antiphon.models.qwen3_omni.checkpoint import Checkpoint
from antiphon.models.qwen3_omni.pipeline import SAMPLE_RATE
from antiphon.models.qwen3_omni.vocoder import StreamingVocoder
from antiphon.stage.engine.generation_model import ModelContext, Slot
from antiphon.stage.request import StageOutput, StageRequest
from antiphon.stage.runner.device import Device


@dataclass
class Code2WavState:
    """One request's vocoder and what it has made."""

    vocoder: StreamingVocoder
    num_frames: int = 0
    num_samples: int = 0


class Code2Wav:
    """Owns the vocoder's weights."""

    rows_per_step: int | None = 75  # six seconds: a long full payload shares the stage with others

    def load(self, context: ModelContext) -> None:
        """Load code2wav.* of the checkpoint; ConfigError if it is not complete."""
        torch.set_num_threads(context.num_threads)
        device = Device(context.device, context.dtype)
        checkpoint = Checkpoint(context.model_path)
        config = checkpoint.config.code2wav_config
        self._network = checkpoint.load(Qwen3OmniMoeCode2Wav, config, "code2wav.", device.torch_device, device.dtype)

    def open(self, request: StageRequest) -> Code2WavState:
        """Nothing decoded yet."""
        return Code2WavState(StreamingVocoder(self._network))

    def has_pending(self, state: Code2WavState) -> bool:
        """Never: what is held back only new frames can make final."""
        return False

    def step(self, batch: list[Slot[Code2WavState]]) -> list[StageOutput]:
        """Turn each slot's new frames into samples."""
        for slot in batch:
            self._check(slot)
        with torch.inference_mode():
            return [self._step(slot) for slot in batch]

    def _check(self, slot: Slot[Code2WavState]) -> None:
        codes = slot.row("codes")
        if codes is None and slot.ended and slot.state.num_frames == 0:
            raise StageError(
                f"{slot.request.request_id}: the talker ended without a single frame, so there is no audio; "
                "ask again, or ask for text alone",
                code="no_audio",
            )
        config = self._network.config
        if codes is not None and not (
            codes.shape[1] == config.num_quantizers and codes.min() >= 0 and codes.max() < config.codebook_size
        ):
            raise StageError(
                f"{slot.request.request_id}: frames of {config.num_quantizers} codes below {config.codebook_size} "
                f"are needed, got {codes.shape[1]} from {codes.min()} to {codes.max()}"
            )

    def _step(self, slot: Slot[Code2WavState]) -> StageOutput:
        state, codes = slot.state, slot.row("codes")
        chunks: tuple[AudioChunk, ...] = ()
        if codes is not None:
            samples = state.vocoder.push(torch.from_numpy(codes.astype(np.int64))).numpy()
            state.num_frames += len(codes)
            state.num_samples += len(samples)
            chunks = (AudioChunk(_pcm16(samples), SAMPLE_RATE),) if len(samples) else ()
        usage = Usage(num_output_tokens=state.num_frames, num_samples=state.num_samples)
        return StageOutput(client=chunks, finished=slot.ended, usage=usage)


def _pcm16(samples: np.ndarray) -> bytes:
    """float32 in [-1, 1] -> s16le."""
    return np.rint(samples * 32767.0).astype("<i2").tobytes()
