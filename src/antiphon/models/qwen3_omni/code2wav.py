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
from antiphon.models.qwen3_omni.vocoder import StreamingVocoder, Window
from antiphon.stage.engine.generation_model import ModelContext, Slot
from antiphon.stage.request import StageOutput, StageRequest
from antiphon.stage.runner.device import Device


@dataclass
class Code2WavState:
    """One request's place in the vocoder, and what has been made of it."""

    window: Window
    num_frames: int = 0
    num_samples: int = 0


class Code2Wav:
    """Owns the vocoder and its weights."""

    rows_per_step: int | None = 75  # six seconds: a long full payload shares the stage with others

    def load(self, context: ModelContext) -> None:
        """Load code2wav.* of the checkpoint; ConfigError if it is not complete."""
        torch.set_num_threads(context.num_threads)
        device = Device(context.device, context.dtype)
        checkpoint = Checkpoint(context.model_path)
        config = checkpoint.config.code2wav_config
        self._network = checkpoint.load(Qwen3OmniMoeCode2Wav, config, "code2wav.", device.torch_device, device.dtype)
        self._vocoder = StreamingVocoder(self._network)

    def open(self, request: StageRequest) -> Code2WavState:
        """Nothing decoded yet."""
        return Code2WavState(self._vocoder.start())

    def has_pending(self, state: Code2WavState) -> bool:
        """Never: what is held back only new frames can make final."""
        return False

    def step(self, batch: list[Slot[Code2WavState]]) -> list[StageOutput | StageError]:
        """Turn all slots' new frames into samples, together; a slot that has none or has bad ones fails alone."""
        faults = [self._fault(slot) for slot in batch]
        sound = [slot for slot, fault in zip(batch, faults, strict=True) if fault is None]
        with torch.inference_mode():
            windows, samples = self._vocoder.push(
                [slot.state.window for slot in sound], [_codes(slot) for slot in sound]
            )
        pcm = [_pcm16(of_slot.numpy()) for of_slot in samples]  # from here on nothing fails, so states may change
        outputs = map(_output, sound, windows, pcm)
        return [next(outputs) if fault is None else fault for fault in faults]

    def _fault(self, slot: Slot[Code2WavState]) -> StageError | None:
        name, codes, config = slot.request.request_id, slot.row("codes"), self._network.config
        if codes is None:
            if slot.ended and slot.state.num_frames == 0:
                return StageError(
                    f"{name}: the talker ended without a single frame, so there is no audio; "
                    "ask again, or ask for text alone",
                    code="no_audio",
                )
            return None
        if codes.shape[1] == config.num_quantizers and codes.min() >= 0 and codes.max() < config.codebook_size:
            return None
        return StageError(
            f"{name}: frames of {config.num_quantizers} codes below {config.codebook_size} are needed, "
            f"got {codes.shape[1]} from {codes.min()} to {codes.max()}"
        )


def _codes(slot: Slot[Code2WavState]) -> torch.Tensor:
    """[n, num_quantizers] int64, a copy; n is 0 if none came."""
    codes = slot.row("codes")
    return torch.empty((0, 0), dtype=torch.int64) if codes is None else torch.from_numpy(codes.astype(np.int64))


def _output(slot: Slot[Code2WavState], window: Window, pcm: bytes) -> StageOutput:
    state = slot.state
    state.window = window
    state.num_frames += len(_codes(slot))
    state.num_samples += len(pcm) // 2
    usage = Usage(num_output_tokens=state.num_frames, num_samples=state.num_samples)
    chunks = (AudioChunk(pcm, SAMPLE_RATE),) if pcm else ()
    return StageOutput(client=chunks, finished=slot.ended, usage=usage)


def _pcm16(samples: np.ndarray) -> bytes:
    """float32 in [-1, 1] -> s16le."""
    return np.rint(samples * 32767.0).astype("<i2").tobytes()
