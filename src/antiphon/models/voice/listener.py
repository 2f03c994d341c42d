"""The listener: whisper-tiny through faster-whisper, one decoded segment per step.

In: `audio` float32 mono 16 kHz [samples]; for a chat also `messages` (a Conversation) and `turn_samples` [num_turns].
Out: Segments for the client of a transcription; for a chat, `messages` with the transcripts filled in.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.messages.client import Segment, SegmentScores, Usage, Word
from antiphon.messages.conversation import Conversation
from antiphon.models.voice.weights import model_path, whisper_tiny
from antiphon.stage.engine.generation_model import ModelContext, Slot
from antiphon.stage.engine.guard import one_by_one
from antiphon.stage.request import NOTHING, StageOutput, StageRequest

_BEAM_SIZE = 5


@dataclass
class ListenerState:
    """What is left to decode: turns that have not begun, and the running turn's segments."""

    turns: list[np.ndarray] = field(default_factory=list)
    segments: Iterator[Segment] | None = None
    transcripts: list[str] = field(default_factory=list)
    num_samples: int = 0


class Listener:
    """Owns the whisper model. A chat's turns are decoded one after the other."""

    rows_per_step: int | None = None

    def load(self, context: ModelContext) -> None:
        """Load the CTranslate2 model in int8."""
        from faster_whisper import WhisperModel

        path = model_path(context.model_path, whisper_tiny())
        kind, _, index = context.device.partition(":")
        self._model = WhisperModel(
            path, device=kind, device_index=int(index or 0), compute_type="int8", cpu_threads=context.num_threads
        )

    def open(self, request: StageRequest) -> ListenerState:
        """An empty state."""
        language = request.params.transcription.language
        if language and language not in self._model.supported_languages:
            raise InvalidRequestError(
                f"`language` is {language!r}, which the listener does not know; send another code, or none",
                param="language",
            )
        return ListenerState()

    def has_pending(self, state: ListenerState) -> bool:
        """True until every turn is decoded."""
        return bool(state.turns) or state.segments is not None

    def step(self, batch: list[Slot[ListenerState]]) -> list[StageOutput | AntiphonError]:
        """Decode the next segment of each slot."""
        return one_by_one(batch, self._step)

    def _step(self, slot: Slot[ListenerState]) -> StageOutput:
        state, request = slot.state, slot.request
        audio = slot.row("audio")
        if audio is not None:
            state.turns = _turns(audio, request.input.whole.get("turn_samples"))
            state.num_samples = len(audio)
        segment = self._next_segment(state, request)
        if segment is not None:
            state.transcripts[-1] = f"{state.transcripts[-1]} {segment.text.strip()}".strip()
            return StageOutput(client=(segment,)) if request.is_final else NOTHING
        if self.has_pending(state) or not slot.ended:
            return NOTHING
        return self._finish(state, request)

    def _next_segment(self, state: ListenerState, request: StageRequest) -> Segment | None:
        if state.segments is None:
            if not state.turns:
                return None
            state.segments = self._transcribe(state.turns.pop(0), request)
            state.transcripts.append("")
        segment = next(state.segments, None)
        if segment is None:
            state.segments = None
        return segment

    def _transcribe(self, audio: np.ndarray, request: StageRequest) -> Iterator[Segment]:
        params = request.params.transcription
        segments, info = self._model.transcribe(
            audio,
            language=params.language or None,
            initial_prompt=params.prompt or None,
            temperature=params.temperature,
            beam_size=_BEAM_SIZE,
            vad_filter=True,
            condition_on_previous_text=False,
            word_timestamps=params.times_words,
            task="translate" if params.translates else "transcribe",
        )
        for segment in segments:
            yield segment_of(segment, "en" if params.translates else info.language, info.duration)

    def _finish(self, state: ListenerState, request: StageRequest) -> StageOutput:
        usage = Usage(num_samples=state.num_samples, num_output_tokens=sum(len(t.split()) for t in state.transcripts))
        if "thinker" not in request.consumers:
            return StageOutput(finished=True, usage=usage)
        conversation = _fill_in(Conversation.decode(request.input.whole["messages"]), state.transcripts)
        handoff = {"thinker": {"messages": conversation.encode()}}
        return StageOutput(handoff=handoff, finished=True, usage=usage)


def segment_of(heard: Any, language: str, duration_s: float) -> Segment:
    """A segment of faster-whisper's, whose numbers are numpy's in part and whose end may lie behind the audio's."""

    def span(timed: Any) -> tuple[float, float]:
        return min(float(timed.start), duration_s), min(float(timed.end), duration_s)

    words = tuple(Word(word.word, *span(word)) for word in heard.words or ())
    scores = SegmentScores(
        int(heard.seek),
        tuple(map(int, heard.tokens)),
        float(heard.temperature or 0.0),
        float(heard.avg_logprob),
        float(heard.compression_ratio),
        float(heard.no_speech_prob),
    )
    return Segment(heard.text, *span(heard), language, words, scores)


def _turns(audio: np.ndarray, turn_samples: np.ndarray | None) -> list[np.ndarray]:
    """The spoken turns of a chat, copied: the rows are valid in this step only."""
    owned = audio.copy()
    return [owned] if turn_samples is None else np.split(owned, np.cumsum(turn_samples)[:-1])


def _fill_in(conversation: Conversation, transcripts: list[str]) -> Conversation:
    spoken = iter(transcripts)
    turns = tuple(
        msgspec.structs.replace(turn, content=f"{turn.content} {next(spoken)}".strip(), spoken=False)
        if turn.spoken
        else turn
        for turn in conversation.turns
    )
    return msgspec.structs.replace(conversation, turns=turns)
