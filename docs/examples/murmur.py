"""A pipeline with an autoregressive stage: a network writes characters, and each is hummed from its hidden row.

    antiphon serve docs/examples/murmur.py:PIPELINE

In: ASCII text. Out: text, and 24 kHz audio if it is asked for. Does not know: torch; the network is in
docs/examples/murmur_writer.py. docs/adding_a_model.md explains both.
"""

from pathlib import Path

import numpy as np

from antiphon.client.frontend import FrontendLimits
from antiphon.config.pipeline import (
    ClientKind,
    EdgeSpec,
    EngineKind,
    Lane,
    Modality,
    OutputSpec,
    PipelineSpec,
    StageSpec,
    TaskSpec,
)
from antiphon.errors import InvalidRequestError, UnsupportedModalityError
from antiphon.messages.client import AudioChunk, Usage
from antiphon.messages.params import RequestParams
from antiphon.messages.payload import EntryPayload
from antiphon.messages.tasks import ChatInput, TaskInput
from antiphon.stage.engine.generation_model import ModelContext, Slot
from antiphon.stage.request import StageOutput, StageRequest

SAMPLE_RATE = 24_000
SAMPLES_PER_ROW = 1_200


def hum(hidden: np.ndarray) -> np.ndarray:  # [n, width] float32 -> [n * SAMPLES_PER_ROW] float64 in [-1, 1]
    """A note per row, up to an octave around 220 Hz, that swells and fades."""
    place = np.arange(SAMPLES_PER_ROW) / SAMPLES_PER_ROW
    periods = 220.0 * 2 ** np.tanh(hidden[:, :1].astype(np.float64)) * SAMPLES_PER_ROW / SAMPLE_RATE
    notes: np.ndarray = np.sin(2 * np.pi * periods * place) * np.sin(np.pi * place)
    return notes.flatten()


class Hummer:
    """Hidden rows to audio, every row by itself. Its state of a request is the number of rows."""

    rows_per_step: int | None = 16

    def load(self, context: ModelContext) -> None:
        """Nothing to load."""

    def open(self, request: StageRequest) -> list[int]:
        """No rows yet."""
        return [0]

    def has_pending(self, state: list[int]) -> bool:
        """Never."""
        return False

    def step(self, batch: list[Slot[list[int]]]) -> list[StageOutput]:
        """Hum each request's new rows."""
        return [self._step(slot) for slot in batch]

    def _step(self, slot: Slot[list[int]]) -> StageOutput:
        hidden = slot.row("hidden")
        chunks: tuple[AudioChunk, ...] = ()
        if hidden is not None:
            chunks = (AudioChunk((hum(hidden) * 32767).astype("<i2").tobytes(), SAMPLE_RATE),)
            slot.state[0] += len(hidden)
        usage = Usage(slot.state[0], num_samples=slot.state[0] * SAMPLES_PER_ROW)
        return StageOutput(client=chunks, finished=slot.ended, usage=usage)


class MurmurFrontend:
    """Makes the prompt of a conversation."""

    def __init__(self, limits: FrontendLimits) -> None:
        self._limits = limits

    def prepare(self, task_input: TaskInput) -> EntryPayload:
        """InvalidRequestError names the parameter that is wrong."""
        if not isinstance(task_input, ChatInput):
            raise UnsupportedModalityError("murmur only chats; use POST /v1/chat/completions", param="model")
        text = "\n".join(message.text for message in task_input.messages) + "\n"
        if not text.isascii() or len(text) > self._limits.max_text_chars:
            raise InvalidRequestError("the conversation must be short, and ASCII", param="messages")
        return EntryPayload(
            task="chat",
            inputs=frozenset({Modality.TEXT}),
            outputs=frozenset({Modality.TEXT, Modality.AUDIO} if task_input.audio_out else {Modality.TEXT}),
            params=RequestParams(sampling=task_input.sampling),
            rows={"prompt": np.frombuffer(text.encode(), np.uint8)},
            whole={},
        )


PIPELINE = PipelineSpec(
    name="murmur",
    stages=(
        StageSpec(
            name="writer",
            engine=EngineKind.AUTOREGRESSIVE,
            model=f"{Path(__file__).with_name('murmur_writer.py')}:Writer",
            outputs=(
                OutputSpec("hidden", Lane.HANDOFF, "float32", (None,)),
                OutputSpec("text", Lane.CLIENT, "uint8", client=ClientKind.TEXT),
            ),
            max_num_seqs=16,
            max_num_batched_tokens=256,
            num_kv_blocks=64,
        ),
        StageSpec(
            name="hummer",
            engine=EngineKind.GENERATION,
            model=f"{__file__}:Hummer",
            outputs=(OutputSpec("pcm", Lane.CLIENT, "int16", client=ClientKind.AUDIO),),
        ),
    ),
    edges=(EdgeSpec("writer", "hummer", ("hidden",)),),
    tasks=(
        TaskSpec(
            "chat",
            entries={Modality.TEXT: "writer"},
            finals={Modality.TEXT: "writer", Modality.AUDIO: "hummer"},
        ),
    ),
    frontend=f"{__file__}:MurmurFrontend",
    sample_rate=SAMPLE_RATE,
)
