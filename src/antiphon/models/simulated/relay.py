"""The two stages of sim-relay: simulated, on the CPU, with values that show every lost, doubled or swapped row.

In: `text` uint8 [num_bytes], `command` uint8. Between: `rows` float32 [num_bytes, 8]. Out: TextDelta.
A row is byte, position, mark, and five times the position; a mark tells the decoder to fail there.
"""

import codecs
import os
import time
from dataclasses import dataclass, field

import numpy as np

from antiphon.errors import StageError
from antiphon.messages.client import TextDelta, Usage
from antiphon.models.simulated.pipeline import ROW_WIDTH
from antiphon.stage.engine.generation_model import ModelContext, Slot
from antiphon.stage.request import StageOutput, StageRequest

SLOW_STEP_S = 0.1
FAULT_ROW = 5
_MARKS = {"raise-in-second": 1.0, "exit-in-second": 2.0}
_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


@dataclass
class EncoderState:
    """How many rows have been made."""

    num_rows: int = 0


class Encoder:
    """Makes a row of every byte."""

    rows_per_step: int | None = 4

    def load(self, context: ModelContext) -> None:
        """StageError if a model path is given: there is nothing to load, and tests want a stage that cannot load."""
        if context.model_path:
            raise StageError(f"the simulated encoder has no weights, and none at {context.model_path}")

    def open(self, request: StageRequest) -> EncoderState:
        """No rows yet."""
        return EncoderState()

    def has_pending(self, state: EncoderState) -> bool:
        """Never."""
        return False

    def step(self, batch: list[Slot[EncoderState]]) -> list[StageOutput]:
        """Encode each slot's next bytes."""
        return [self._step(slot) for slot in batch]

    def _step(self, slot: Slot[EncoderState]) -> StageOutput:
        command, text = bytes(slot.request.input.whole.get("command", b"")).decode(), slot.row("text")
        if command == "empty" or text is None:
            return StageOutput(finished=slot.ended)
        if command == "slow":
            time.sleep(SLOW_STEP_S)
        if command == "raise-in-first" and slot.state.num_rows + len(text) > FAULT_ROW:
            raise RuntimeError("the encoder was told to raise")
        if command == "undeclared" and slot.state.num_rows + len(text) > FAULT_ROW:
            return StageOutput(handoff={"decoder": {"surprise": np.zeros(1, np.float32)}})
        rows = encode(text, slot.state.num_rows, _MARKS.get(command, 0.0))
        slot.state.num_rows += len(rows)
        return StageOutput(handoff={"decoder": {"rows": rows}}, finished=slot.ended)


def encode(text: np.ndarray, first_row: int, mark: float) -> np.ndarray:
    """[num_bytes] uint8 -> [num_bytes, 8] float32."""
    rows = np.empty((len(text), ROW_WIDTH), np.float32)
    rows[:, 0] = text
    rows[:, 1:] = np.arange(first_row, first_row + len(text))[:, None]
    rows[:, 2] = np.where(rows[:, 1] == FAULT_ROW, mark, 0.0)
    return rows


@dataclass
class DecoderState:
    """How many rows have been read, and a character that is not complete."""

    num_rows: int = 0
    utf8: codecs.IncrementalDecoder = field(default_factory=lambda: _Utf8Decoder(errors="replace"))


class Decoder:
    """Gives the text back, after a check of every value."""

    rows_per_step: int | None = None

    def load(self, context: ModelContext) -> None:
        """Nothing to load."""

    def open(self, request: StageRequest) -> DecoderState:
        """No rows yet."""
        return DecoderState()

    def has_pending(self, state: DecoderState) -> bool:
        """Never."""
        return False

    def step(self, batch: list[Slot[DecoderState]]) -> list[StageOutput]:
        """Decode each slot's new rows."""
        return [self._step(slot) for slot in batch]

    def _step(self, slot: Slot[DecoderState]) -> StageOutput:
        state, rows = slot.state, slot.row("rows")
        if rows is None:
            return StageOutput(finished=slot.ended, usage=Usage(num_output_tokens=state.num_rows))
        if 1.0 in rows[:, 2]:
            raise RuntimeError("the decoder was told to raise")
        if 2.0 in rows[:, 2]:
            os._exit(3)  # what a crash of a native library looks like from outside
        if not np.array_equal(rows, encode(rows[:, 0].astype(np.uint8), state.num_rows, 0.0)):
            raise StageError(f"{slot.request.request_id}: the rows from {state.num_rows} on are not what was encoded")
        state.num_rows += len(rows)
        text = state.utf8.decode(rows[:, 0].astype(np.uint8).tobytes(), final=slot.ended)
        client = (TextDelta(text),) if text else ()
        return StageOutput(client=client, finished=slot.ended, usage=Usage(num_output_tokens=state.num_rows))
