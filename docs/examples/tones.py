"""A whole pipeline in one file: every character of a text becomes a tone. Serve it with

    antiphon serve docs/examples/tones.py:PIPELINE

In: text. Out: 24 kHz audio. Does not know: processes, sockets, HTTP. docs/adding_a_model.md explains it step by step.
"""

import codecs
from dataclasses import dataclass, field

import numpy as np

from antiphon.client.frontend import FrontendLimits
from antiphon.config.pipeline import (
    ChunkPlan,
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
from antiphon.messages.params import RequestParams, SpeechParams
from antiphon.messages.payload import EntryPayload
from antiphon.messages.tasks import SpeechInput, TaskInput
from antiphon.stage.engine.generation_model import ModelContext, Slot
from antiphon.stage.request import NOTHING, StageOutput, StageRequest

SAMPLE_RATE = 24_000
SECONDS_PER_CHARACTER = 0.1
LOWEST_HZ = 220.0
AMPLITUDE = 0.3
TONE_WIDTH = 3  # frequency in Hz, amplitude 0-1, duration in samples


def tones_of(text: str, speed: float) -> np.ndarray:  # [len(text), 3] float32
    """One tone per character: letters and digits climb semitones from 220 Hz, everything else is silence."""
    duration = round(SECONDS_PER_CHARACTER * SAMPLE_RATE / speed)
    frequencies = [LOWEST_HZ * 2 ** (ord(char.lower()) % 24 / 12) for char in text]
    amplitudes = [AMPLITUDE if char.isalnum() else 0.0 for char in text]
    return np.array([frequencies, amplitudes, [duration] * len(text)], np.float32).T


@dataclass
class ComposerState:
    """What is left of a character that was cut in two, and how many characters there were."""

    decoder: codecs.IncrementalDecoder = field(default_factory=codecs.getincrementaldecoder("utf-8"))
    num_characters: int = 0


class Composer:
    """Text to tones. In: `text` uint8 [num_bytes], UTF-8 cut anywhere. Out: `tones` float32 [n, 3]."""

    rows_per_step: int | None = 8  # bytes; small, so that the first tone leaves before the last byte is read

    def load(self, context: ModelContext) -> None:
        """A real model loads its weights here, from context.model_path or its package."""

    def open(self, request: StageRequest) -> ComposerState:
        """The state of a new request."""
        return ComposerState()

    def has_pending(self, state: ComposerState) -> bool:
        """Never: half a character makes no tone."""
        return False

    def step(self, batch: list[Slot[ComposerState]]) -> list[StageOutput]:
        """A real model runs the whole batch at once."""
        return [self._step(slot) for slot in batch]

    def _step(self, slot: Slot[ComposerState]) -> StageOutput:
        text = slot.row("text")
        characters = "" if text is None else slot.state.decoder.decode(text.tobytes())
        slot.state.num_characters += len(characters)
        if not characters:
            return StageOutput(finished=True) if slot.ended else NOTHING
        tones = tones_of(characters, slot.request.params.speech.speed)
        return StageOutput(handoff={"synthesizer": {"tones": tones}}, finished=slot.ended)


@dataclass
class Oscillator:
    """One request's wave: its phase goes on from tone to tone and from chunk to chunk."""

    phase: float = 0.0  # radians
    num_tones: int = 0
    num_samples: int = 0

    def play(self, tones: np.ndarray) -> np.ndarray:  # [n, 3] -> [num_samples] float64 in [-1, 1]
        """The next samples."""
        durations = tones[:, 2].astype(np.int64)
        steps = np.repeat(2 * np.pi * tones[:, 0].astype(np.float64) / SAMPLE_RATE, durations)
        phases = self.phase + np.cumsum(steps)
        self.phase = float(phases[-1] % (2 * np.pi))
        self.num_tones += len(tones)
        self.num_samples += len(phases)
        samples: np.ndarray = np.sin(phases) * np.repeat(tones[:, 1], durations)
        return samples


class Synthesizer:
    """Tones to audio. In: `tones` float32 [n, 3]. Out: AudioChunk."""

    rows_per_step: int | None = 4  # tones; 0.4 s of audio at most before others have their turn

    def load(self, context: ModelContext) -> None:
        """Nothing to load."""

    def open(self, request: StageRequest) -> Oscillator:
        """A wave that starts at 0."""
        return Oscillator()

    def has_pending(self, state: Oscillator) -> bool:
        """Never: every tone is played when it comes."""
        return False

    def step(self, batch: list[Slot[Oscillator]]) -> list[StageOutput]:
        """Play each request's new tones."""
        return [self._step(slot) for slot in batch]

    def _step(self, slot: Slot[Oscillator]) -> StageOutput:
        oscillator, tones = slot.state, slot.row("tones")
        chunks: tuple[AudioChunk, ...] = ()
        if tones is not None:
            pcm = (oscillator.play(tones) * 32767).astype("<i2").tobytes()
            chunks = (AudioChunk(pcm, SAMPLE_RATE),)
        usage = Usage(oscillator.num_tones, oscillator.num_tones, oscillator.num_samples)
        return StageOutput(client=chunks, finished=slot.ended, usage=usage)


class TonesFrontend:
    """Checks a request before any stage hears of it, and makes the entry stage's arrays of it."""

    def __init__(self, limits: FrontendLimits) -> None:
        self._limits = limits

    def prepare(self, task_input: TaskInput) -> EntryPayload:
        """InvalidRequestError names the parameter that is wrong."""
        if not isinstance(task_input, SpeechInput):
            raise UnsupportedModalityError("the tones pipeline only speaks; use POST /v1/audio/speech", param="model")
        text = task_input.text
        if not text.strip() or len(text) > self._limits.max_text_chars:
            allowed = f"1 to {self._limits.max_text_chars} characters (server.max_text_chars)"
            raise InvalidRequestError(f"input has {len(text.strip())} characters; send {allowed}", param="input")
        return EntryPayload(
            task="speech",
            inputs=frozenset({Modality.TEXT}),
            outputs=frozenset({Modality.AUDIO}),
            params=RequestParams(speech=SpeechParams(speed=task_input.speed)),
            rows={"text": np.frombuffer(text.encode(), np.uint8)},
            whole={},
        )


PIPELINE = PipelineSpec(
    name="tones",
    stages=(
        StageSpec(
            name="composer",
            engine=EngineKind.GENERATION,
            model=f"{__file__}:Composer",
            outputs=(OutputSpec("tones", Lane.HANDOFF, "float32", (TONE_WIDTH,)),),
        ),
        StageSpec(
            name="synthesizer",
            engine=EngineKind.GENERATION,
            model=f"{__file__}:Synthesizer",
            outputs=(OutputSpec("pcm", Lane.CLIENT, "int16", client=ClientKind.AUDIO),),
        ),
    ),
    edges=(EdgeSpec("composer", "synthesizer", ("tones",), ChunkPlan(first_rows=1, rows=4)),),
    tasks=(TaskSpec("speech", entries={Modality.TEXT: "composer"}, finals={Modality.AUDIO: "synthesizer"}),),
    frontend=f"{__file__}:TonesFrontend",
    sample_rate=SAMPLE_RATE,
)
