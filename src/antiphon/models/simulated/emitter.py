"""The stage of the sim-emitter pipelines: simulated; one output per request and step, without any waiting.

In: `plan` int64 [1, 3] or its producer's `payload` rows. Out: TokenDelta or TextDelta, `payload` uint8 [1, row_bytes].
Does not know: what is measured with it.
"""

import struct
from dataclasses import dataclass
from functools import cache
from string import ascii_lowercase
from typing import TYPE_CHECKING

import numpy as np

from antiphon.errors import StageError
from antiphon.messages.client import ClientData, TextDelta, TokenDelta, Usage
from antiphon.models.simulated.emitter_pipeline import EmitterPlan, Form
from antiphon.stage.engine.generation_model import ModelContext, Slot
from antiphon.stage.request import Arrays, StageOutput, StageRequest

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.decoders import DecodeStream

_PLAN = struct.Struct("=qqq")
_NUMBER = struct.Struct("=q")
_NUM_TOKENS = len(ascii_lowercase)
_FORMS = tuple(Form)


@dataclass
class Emission:
    """How far a request is. num_read: its producer's rows; row 0 holds the plan, each later one its number."""

    consumer: str
    plan: EmitterPlan | None = None
    decoder: "DecodeStream | None" = None
    num_emitted: int = 0
    num_read: int = 0


class Emitter:
    """Owns nothing."""

    rows_per_step: int | None = 4096  # more than there are ever: any number will do, so large rows need no copying

    def load(self, context: ModelContext) -> None:
        """Nothing to load."""

    def open(self, request: StageRequest) -> Emission:
        """Nothing emitted yet."""
        (consumer,) = request.consumers or ("",)
        return Emission(consumer)

    def has_pending(self, state: Emission) -> bool:
        """True until everything has been emitted."""
        return state.plan is not None and state.num_emitted < state.plan.num_outputs

    def step(self, batch: list[Slot[Emission]]) -> list[StageOutput]:
        """One output of every slot that has its plan."""
        return [self._step(slot) for slot in batch]

    def _step(self, slot: Slot[Emission]) -> StageOutput:
        state = slot.state
        for arrays in slot.rows.values():
            if arrays:
                self._read(slot, arrays)
        plan = state.plan
        if plan is None:
            return StageOutput(finished=slot.ended)
        handoff: dict[str, Arrays] = {}
        client: tuple[ClientData, ...] = ()
        if state.num_emitted < plan.num_outputs:
            if state.consumer and (plan.row_bytes or not state.num_emitted):
                handoff = {state.consumer: {"payload": _payload(plan, state.num_emitted)}}
            if slot.request.is_final:
                client = _said(state, plan)
            state.num_emitted += 1
        if slot.ended and state.num_emitted >= plan.num_outputs:
            usage = Usage(num_output_tokens=state.num_emitted)
            return StageOutput(handoff, client=client, finished=True, usage=usage)
        return StageOutput(handoff, client=client)

    def _read(self, slot: Slot[Emission], arrays: Arrays) -> None:
        state = slot.state
        for row in arrays.get("plan", arrays.get("payload", ())):
            if state.plan is None:
                num_outputs, row_bytes, form = _PLAN.unpack_from(row)
                state.plan = EmitterPlan(num_outputs, row_bytes, _FORMS[form])
                state.decoder = _decode_stream() if state.plan.is_text else None
            elif _NUMBER.unpack_from(row) != (state.num_read,):
                raise StageError(f"{slot.request.request_id}: row {state.num_read} is not what was sent")
            state.num_read += 1


def _payload(plan: EmitterPlan, number: int) -> np.ndarray:
    """[1, row_bytes] uint8 of which only the start is written, as a device's copy would leave no more to do."""
    row = np.empty((1, max(plan.row_bytes, _PLAN.size)), np.uint8)
    if number:
        _NUMBER.pack_into(row.data, 0, number)
    else:
        _PLAN.pack_into(row.data, 0, plan.num_outputs, plan.row_bytes, plan.form)
    return row


def _said(state: Emission, plan: EmitterPlan) -> tuple[ClientData, ...]:
    if state.decoder is None:
        return (TokenDelta([state.num_emitted]),)
    text = state.decoder.step(_tokenizer(), state.num_emitted % _NUM_TOKENS)
    if text is None:
        return ()
    return (TextDelta(text), TokenDelta([])) if plan.form is Form.APART else (TextDelta(text),)


@cache
def _tokenizer() -> "Tokenizer":
    """A real byte-level tokenizer; its 26 tokens are letters, so that each makes text at once."""
    from tokenizers import Tokenizer, decoders, models

    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(ascii_lowercase)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _decode_stream() -> "DecodeStream":
    from tokenizers.decoders import DecodeStream

    return DecodeStream(skip_special_tokens=True)
