"""The talker: text as it arrives -> clauses -> spectral frames, one clause per step.

In: `text` uint8 [num_bytes], UTF-8 cut anywhere. Out: `params` float32 [num_frames, 3006], `sentence_end` uint8
[num_frames], `num_tokens` int64 [1] (the phonemes spoken so far).
"""

import codecs
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from antiphon.clauses import ClauseSplitter
from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.models.voice.acoustic import AcousticModel
from antiphon.stage.engine.generation_model import ModelContext, Slot
from antiphon.stage.engine.guard import one_by_one
from antiphon.stage.request import NOTHING, Arrays, StageOutput, StageRequest

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


@dataclass
class TalkerState:
    """The text that is not spoken yet."""

    splitter: ClauseSplitter
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: _Utf8Decoder(errors="replace"))
    clauses: deque[str] = field(default_factory=deque)
    is_complete: bool = False
    num_tokens: int = 0


class Talker:
    """Owns the acoustic network."""

    rows_per_step: int | None = None

    def load(self, context: ModelContext) -> None:
        """Load the network and the pronunciation tables."""
        self._acoustic = AcousticModel.load(context.num_threads)

    def open(self, request: StageRequest) -> TalkerState:
        """No text yet."""
        return TalkerState(ClauseSplitter(continues=request.params.speech.continues))

    def has_pending(self, state: TalkerState) -> bool:
        """True while finished clauses wait."""
        return bool(state.clauses)

    def step(self, batch: list[Slot[TalkerState]]) -> list[StageOutput | AntiphonError]:
        """Speak the next clause of each slot."""
        return one_by_one(batch, self._step)

    def _step(self, slot: Slot[TalkerState]) -> StageOutput:
        state = slot.state
        self._read(slot)
        finished = state.is_complete and len(state.clauses) <= 1
        ids = self._acoustic.phoneme_ids(state.clauses.popleft()) if state.clauses else []
        if not ids:
            if finished and not state.num_tokens and slot.request.task == "speech":
                raise InvalidRequestError("`input` has nothing that this voice can speak; send English", param="input")
            return StageOutput(finished=True) if finished else NOTHING
        params, sentence_end = self._acoustic.frames(ids, slot.request.params.speech.speed)
        state.num_tokens += sum(map(len, ids))
        num_tokens = np.array([state.num_tokens], np.int64)
        rows: Arrays = {"params": params, "sentence_end": sentence_end, "num_tokens": num_tokens}
        return StageOutput(handoff={"code2wav": rows}, finished=finished)

    def _read(self, slot: Slot[TalkerState]) -> None:
        state = slot.state
        text = slot.row("text")
        if text is not None:
            state.clauses += state.splitter.push(state.decoder.decode(text.tobytes()))
        if slot.ended and not state.is_complete:
            state.is_complete = True
            state.clauses += state.splitter.push(state.decoder.decode(b"", final=True))
            state.clauses += state.splitter.finish()
