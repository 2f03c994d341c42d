"""The three stages of sim-voice: simulated, on the CPU; a step takes some milliseconds and checks every value it reads.

In: `text` uint8 [num_bytes], `command` uint8. Between: `codes` int32, `frames` float32. Out: TextDelta, AudioChunk.
Does not know: what the values are made of (see voice_values).
"""

import codecs
import os
import time
from dataclasses import dataclass, field

import numpy as np

from antiphon.errors import AntiphonError, StageError
from antiphon.messages.client import AudioChunk, TextDelta, Usage
from antiphon.models.simulated import voice_values as values
from antiphon.models.simulated.voice_pipeline import COMMANDS, PIPELINE
from antiphon.stage.engine.generation_model import ModelContext, Slot
from antiphon.stage.engine.guard import one_by_one
from antiphon.stage.request import StageOutput, StageRequest

STEP_S = 0.004
_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


@dataclass
class Progress:
    """How many rows have been read, and a character that is not complete."""

    num_rows: int = 0
    utf8: codecs.IncrementalDecoder = field(default_factory=lambda: _Utf8Decoder(errors="replace"))


class _SimulatedStage:
    """A model without weights. In their place, `stages.<name>.model` may say how long a step takes: `0.1s`."""

    rows_per_step: int | None = 16
    name = ""
    step_s = STEP_S

    def load(self, context: ModelContext) -> None:
        """Nothing to load; ValueError if the time of a step is none."""
        if context.model_path:
            self.step_s = float(context.model_path.removesuffix("s"))

    def open(self, request: StageRequest) -> Progress:
        """No rows yet."""
        return Progress()

    def has_pending(self, state: Progress) -> bool:
        """Never."""
        return False

    def step(self, batch: list[Slot[Progress]]) -> list[StageOutput | AntiphonError]:
        """Take each slot's next rows, in the time that one step takes."""
        time.sleep(self.step_s)
        return one_by_one(batch, self._step)

    def _step(self, slot: Slot[Progress]) -> StageOutput:
        raise NotImplementedError

    def _end(self, slot: Slot[Progress]) -> StageOutput:
        return StageOutput(finished=slot.ended, usage=Usage(num_output_tokens=slot.state.num_rows))

    def _fail_where_told(self, faults: np.ndarray) -> None:
        """faults: [num_rows], 0 or a command's number."""
        for fault in faults[faults > 0]:
            if COMMANDS[int(fault) - 1] == f"raise-in-{self.name}":
                raise RuntimeError(f"the {self.name} was told to raise")
            if COMMANDS[int(fault) - 1] == f"exit-in-{self.name}":
                os._exit(3)  # what a crash of a native library looks like from outside

    def _check(self, slot: Slot[Progress], got: np.ndarray, expected: np.ndarray) -> None:
        if not np.array_equal(got, expected):
            first = slot.state.num_rows
            raise StageError(f"{slot.request.request_id}: {self.name}: the rows from {first} on are not what was sent")


class Thinker(_SimulatedStage):
    """Says the text again, and makes a code of every byte."""

    name = "thinker"

    def _step(self, slot: Slot[Progress]) -> StageOutput:
        text, state = slot.row("text"), slot.state
        if text is None:
            return self._end(slot)
        codes = values.codes(text, state.num_rows, _fault(slot))
        self._fail_where_told(codes[:, values.FAULT_COLUMN])
        state.num_rows += len(text)
        said = state.utf8.decode(text.tobytes(), final=slot.ended)
        return StageOutput(
            handoff={"talker": {"codes": codes}} if "talker" in slot.request.consumers else {},
            client=(TextDelta(said),) if said else (),
            finished=slot.ended,
            usage=Usage(num_output_tokens=state.num_rows),
        )


class Talker(_SimulatedStage):
    """Makes a frame of every code; a text that enters here is encoded first."""

    name = "talker"

    def _step(self, slot: Slot[Progress]) -> StageOutput:
        text, codes, state = slot.row("text"), slot.row("codes"), slot.state
        if text is not None:
            codes = values.codes(text, state.num_rows, _fault(slot))
        if codes is None:
            return self._end(slot)
        faults = codes[:, values.FAULT_COLUMN]
        self._fail_where_told(faults)
        expected = values.codes(codes[:, 0].astype(np.uint8), state.num_rows)
        expected[:, values.FAULT_COLUMN] = faults
        self._check(slot, codes, expected)
        state.num_rows += len(codes)
        return StageOutput(handoff={"code2wav": {"frames": values.frames(codes)}}, finished=slot.ended)


class Code2Wav(_SimulatedStage):
    """Makes samples of every frame."""

    name = "code2wav"

    def _step(self, slot: Slot[Progress]) -> StageOutput:
        frames, state = slot.row("frames"), slot.state
        if frames is None:
            return self._end(slot)
        faults, text = frames[:, values.FAULT_COLUMN], frames[:, 0].astype(np.uint8)
        self._fail_where_told(faults)
        codes = values.codes(text, state.num_rows)
        codes[:, values.FAULT_COLUMN] = faults
        self._check(slot, frames, values.frames(codes))
        pcm = values.samples(text, state.num_rows).astype("<i2").tobytes()
        state.num_rows += len(frames)
        num_samples = state.num_rows * values.SAMPLES_PER_ROW
        usage = Usage(num_output_tokens=state.num_rows, num_samples=num_samples)
        return StageOutput(client=(AudioChunk(pcm, PIPELINE.sample_rate),), finished=slot.ended, usage=usage)


def _fault(slot: Slot[Progress]) -> int:
    return values.fault_of(bytes(slot.request.input.whole.get("command", b"")).decode())
