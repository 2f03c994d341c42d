"""A simulated stage that is not autoregressive: it checks every row it reads, sleeps, and makes audio or a picture.

In: rows of the stage before. Out: AudioChunks, samples_per_row for each row; or one ImageOutput when all have come.
Does not know: batching, how long rows take to arrive.
"""

import os.path
import time
from dataclasses import dataclass, field
from pathlib import Path

from antiphon.errors import AntiphonError
from antiphon.messages.client import AudioChunk, ImageOutput, Usage
from antiphon.models.simulated.arrivals import Arrived, Inspector
from antiphon.models.simulated.profile import Generator, load_profile
from antiphon.models.simulated.row_values import Check, RowCodec, request_number
from antiphon.models.simulated.step_clock import StepClock, sleep_until
from antiphon.stage.engine.generation_model import ModelContext, Slot
from antiphon.stage.engine.guard import one_by_one
from antiphon.stage.request import NOTHING, StageOutput, StageRequest

CHANNELS = 3


@dataclass
class GeneratorState:
    """One request: what its values are made of, and what has come."""

    number: int
    arrived: Arrived = field(default_factory=Arrived)


def audio_codec(samples_per_row: int) -> RowCodec:
    """What makes a row's samples: int16 [samples_per_row]."""
    return RowCodec("pcm", "int16", (samples_per_row,))


def picture_codec(width: int) -> RowCodec:
    """What makes a line of a picture: uint8 [width, 3]."""
    return RowCodec("pixels", "uint8", (width, CHANNELS))


class SimulatedGenerator:
    """Owns the stage's numbers, its clock and its codec."""

    def __init__(self, profile: str, stage: str) -> None:
        self._profile_path = profile
        self._stage = stage
        self.rows_per_step: int | None = None

    def load(self, context: ModelContext) -> None:
        """Read the profile; ConfigError if it cannot be read."""
        profile, options = load_profile(Path(self._profile_path)), context.options
        stage = profile.stages[self._stage].with_options(options)
        producer = profile.producer_of(self._stage)
        hand_off = profile.stages[producer].hands_off
        assert stage.generator is not None and hand_off is not None, f"{self._stage} is no generator behind a stage"
        self._generator: Generator = stage.generator
        self._sample_rate = profile.sample_rate
        self.rows_per_step = self._generator.rows_per_step
        replica = os.path.basename(context.private_path)
        self._clock = StepClock(stage.step, seed=int(options["seed"]), replica=replica)
        self._inspector = Inspector(self._stage, producer, hand_off, Check(str(options["check"])))
        if self._generator.samples_per_row:
            self._codec = audio_codec(self._generator.samples_per_row)
        else:
            self._codec = picture_codec(self._generator.width)

    def open(self, request: StageRequest) -> GeneratorState:
        """Nothing has come yet."""
        return GeneratorState(request_number(request.request_id))

    def has_pending(self, state: GeneratorState) -> bool:
        """Never: all that has come is used at once, or waits for the end."""
        return False

    def step(self, batch: list[Slot[GeneratorState]]) -> list[StageOutput | AntiphonError]:
        """Check what has come, and make what can be made of it, in the time that it takes."""
        began_s = time.monotonic()
        num_before = sum(slot.state.arrived.num_rows for slot in batch)
        num_context = sum(min(self._generator.left_context_rows, slot.state.arrived.num_rows) for slot in batch)
        outputs = one_by_one(batch, self._make)
        num_working = sum(output is not NOTHING for output in outputs)
        if num_working:
            num_rows = sum(slot.state.arrived.num_rows for slot in batch) - num_before + num_context
            sleep_until(self._clock.end_s(began_s, num_working, max(0, num_rows - num_working)))
        return outputs

    def _make(self, slot: Slot[GeneratorState]) -> StageOutput:
        state = slot.state
        (rows,) = slot.rows.values()
        first = state.arrived.num_rows
        count = self._inspector.take(slot.request, state.number, state.arrived, rows, ended=slot.ended)
        if self._generator.samples_per_row:
            return self._audio(slot, first, count)
        if not slot.ended:
            return NOTHING
        height, width = self._generator.height, self._generator.width
        pixels = self._codec.rows_of(state.number, 0, height, ends=True)
        return StageOutput(client=(ImageOutput(pixels.tobytes(), height, width, CHANNELS),), finished=True)

    def _audio(self, slot: Slot[GeneratorState], first: int, count: int) -> StageOutput:
        arrived = slot.state.arrived
        num_samples = arrived.num_rows * self._generator.samples_per_row
        usage = Usage(num_output_tokens=arrived.num_rows, num_samples=num_samples)
        if not count:
            return StageOutput(finished=slot.ended, usage=usage)
        samples = self._codec.rows_of(slot.state.number, first, count, ends=arrived.has_last)
        chunk = AudioChunk(samples.tobytes(), self._sample_rate)
        return StageOutput(client=(chunk,), finished=slot.ended, usage=usage)
