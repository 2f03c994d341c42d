"""A simulated autoregressive stage: the real engine and scheduler, a network that sleeps.

In: `prompt` uint8 [num_bytes] of a client, or rows of the stage before. Out: words to the client, rows to the next
stage, as many as the profile says. Does not know: batching, KV blocks, how long rows take to arrive.

A writer's answer has the length that the client or the profile asks for. A stage that reads another's rows starts when
the first row behind the prompt has come, and makes no more tokens than it has rows for; how many there will be in all
is known when its input has ended.
"""

import os.path
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from antiphon.messages.client import ClientData, RawRows, TextDelta, Usage
from antiphon.models.simulated.arrivals import Arrived, Inspector, codecs_of
from antiphon.models.simulated.device import SimulatedDevice
from antiphon.models.simulated.profile import Sequences, StageProfile, load_profile
from antiphon.models.simulated.row_values import LAST, PROMPT, WORDS, Check, request_number, word_of
from antiphon.models.simulated.step_clock import StepClock
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.engine.sequence_model import Accepted, ComputedSpan, Span
from antiphon.stage.request import NOTHING, Arrays, StageOutput, StageRequest

_END = -1
"""The token of a sequence that ends without having made one."""


@dataclass
class SequenceState:
    """One request.

    number: what its values are made of. num_prompt: 0 until the prompt is complete. num_allowed: tokens that may be
    made with what has come. total: tokens in all, None until that is known. made: the last token's rows, until they
    are handed off. has_begun: something was handed off.
    """

    number: int
    arrived: Arrived = field(default_factory=Arrived)
    prompt: list[bytes] = field(default_factory=list)
    num_prompt: int = 0
    num_made: int = 0
    num_allowed: int = 0
    total: int | None = None
    finish_reason: str = "length"
    num_positions: int = 0
    made: Arrays = field(default_factory=dict)
    has_begun: bool = False

    def update(self) -> None:
        """Position num_prompt + i is token i, known if token i + 1 may be made."""
        if self.num_prompt:
            num_known = self.num_made if self.num_made < self.num_allowed else max(0, self.num_allowed - 1)
            self.num_positions = self.num_prompt + num_known


@dataclass(frozen=True)
class SimulatedStep:
    """What a step makes, which nobody gets before its time."""

    computed: list[ComputedSpan]
    device: SimulatedDevice

    def is_over(self) -> bool:
        """As the device says."""
        return self.device.is_over()

    def collect(self) -> list[ComputedSpan]:
        """Waits until the step is over."""
        self.device.finish()
        return self.computed


class SimulatedSequences:
    """Owns the stage's numbers, its clock and device, and its codecs. It is the engine's model and its runner."""

    def __init__(self, context: ModelContext, profile: str, stage: str) -> None:
        self._context = context
        self._profile_path = profile
        self._stage = stage
        self._device = SimulatedDevice()

    def startup(self) -> None:
        """Read the profile; ConfigError if it cannot be read."""
        profile, options = load_profile(Path(self._profile_path)), self._context.options
        stage: StageProfile = profile.stages[self._stage].with_options(options)
        assert stage.sequences is not None, f"{self._stage} is no stage of sequences"
        self._sequences: Sequences = stage.sequences
        hand_off = stage.hands_off
        self._consumer = hand_off.to if hand_off is not None else ""
        self._rows_of_positions = hand_off is not None and hand_off.rows_of == "positions"
        self._sends_raw = hand_off is not None and hand_off.hidden_states_lane == "both"
        self._codecs = codecs_of(hand_off.per_row) if hand_off is not None else {}
        self._once = codecs_of(hand_off.once) if hand_off is not None else {}
        self._clock = StepClock(
            stage.step, seed=int(options["seed"]), replica=os.path.basename(self._context.private_path)
        )
        self._device.startup()
        self._producer = profile.producer_of(self._stage)
        self._inspector = _inspector(self._stage, self._producer, profile.stages, options)

    def open(self, request: StageRequest) -> SequenceState:
        """Nothing has come yet."""
        return SequenceState(request_number(request.request_id))

    def receive(self, request: StageRequest, state: SequenceState, rows: dict[str, Arrays], ended: bool) -> None:
        """StageError if a row is not the one that should have come."""
        if self._inspector is None:
            if "prompt" in rows["client"]:
                state.prompt.append(rows["client"]["prompt"].tobytes())
            if ended:
                self._begin(request, state, len(b"".join(state.prompt).split()))
        else:
            self._inspector.take(request, state.number, state.arrived, rows[self._producer], ended=ended)
            self._go_on(state, ended=ended)
        state.update()

    def num_positions(self, state: SequenceState) -> int:
        """See SequenceState.update."""
        return state.num_positions

    def launch(self, spans: list[Span[SequenceState]], blocks: list[list[int]]) -> SimulatedStep:
        """Make the step's rows; it is over when a GPU would have made them."""
        began_s = time.monotonic()
        if self._rows_of_positions:
            rows = self._position_rows(spans)
        else:
            self._make_token_rows([span for span in spans if span.samples])
            rows = [{} for _ in spans]
        computed = [
            ComputedSpan(arrays, *self._sample(span.state)) if span.samples else ComputedSpan(arrays)
            for span, arrays in zip(spans, rows, strict=True)
        ]
        num_more = sum(span.stop - span.start for span in spans) - len(spans)
        self._device.begin(self._clock.end_s(began_s, len(spans), num_more))
        return SimulatedStep(computed, self._device)

    def fileno(self) -> int:
        """Readable when the device is ready."""
        return self._device.fileno()

    def forget(self, request_id: str) -> None:
        """Nothing is kept outside the states."""

    def close(self) -> None:
        """Give the device's descriptor back."""
        self._device.close()

    def accept(self, batch: list[Accepted[SequenceState]]) -> list[StageOutput]:
        """Hand off and say what the step has made."""
        return [self._output(entry) for entry in batch]

    def _begin(self, request: StageRequest, state: SequenceState, num_words: int) -> None:
        state.num_prompt = max(1, num_words)
        natural = self._sequences.natural_tokens
        if not natural:
            state.total = int(self._sequences.per_word * num_words)
        elif request.params.sampling.ignore_eos or natural > request.params.sampling.max_tokens:
            state.total = request.params.sampling.max_tokens
        else:
            state.total, state.finish_reason = natural, "stop"
        state.num_allowed = state.total

    def _go_on(self, state: SequenceState, *, ended: bool) -> None:
        arrived, per_word = state.arrived, self._sequences.per_word
        num_words = arrived.num_rows - arrived.num_prompt
        if ended:  # the last token has no row: nothing was computed from it
            state.total = int(per_word * (num_words + 1)) if arrived.num_rows else 0
            state.num_allowed = state.total
        else:
            state.num_allowed = num_words if per_word >= 1 else max(0, int(num_words * per_word) - 1)
        if not state.num_prompt and (state.num_allowed or ended):
            state.num_prompt = max(1, arrived.num_prompt)

    def _sample(self, state: SequenceState) -> tuple[int, str | None]:
        if state.total == 0:
            return _END, "stop"
        token = word_of(state.number, state.num_made) if self._sequences.says_text else 0
        return token, state.finish_reason if state.num_made + 1 == state.total else None

    def _position_rows(self, spans: list[Span[SequenceState]]) -> list[Arrays]:
        wanted = [span for span in spans if span.request.consumers]
        if not wanted:
            return [{} for _ in spans]
        counts = [span.stop - span.start for span in wanted]
        numbers = np.array([span.state.number for span in wanted], np.uint64)
        table = [(span.start, span.state.num_prompt, _last_position(span.state)) for span in wanted]
        stops = np.cumsum(counts)
        starts, prompts, lasts = np.repeat(np.array(table), counts, axis=0).T
        positions = np.arange(stops[-1]) - np.repeat(stops - counts, counts) + starts
        flags = PROMPT * (positions < prompts) + LAST * (positions == lasts)
        made = {
            key: codec.make(np.repeat(numbers, counts), positions.astype(np.uint64), flags.astype(np.uint64))
            for key, codec in self._codecs.items()
        }
        pieces = {
            span.request.request_id: {key: array[stop - count : stop] for key, array in made.items()}
            for span, stop, count in zip(wanted, stops.tolist(), counts, strict=True)
        }
        return [pieces.get(span.request.request_id, {}) for span in spans]

    def _make_token_rows(self, spans: list[Span[SequenceState]]) -> None:
        """Each state gets the rows of its next token; `accept` hands them off."""
        states = [span.state for span in spans if span.request.consumers]
        if not states:
            return
        requests = np.array([state.number for state in states], np.uint64)
        rows = np.array([state.num_made for state in states], np.uint64)
        flags = np.array([LAST if state.num_made + 1 == state.total else 0 for state in states], np.uint64)
        made = {key: codec.make(requests, rows, flags) for key, codec in self._codecs.items()}
        for index, state in enumerate(states):
            state.made = {key: array[index : index + 1] for key, array in made.items()}

    def _output(self, entry: Accepted[SequenceState]) -> StageOutput:
        state, token = entry.state, entry.token
        rows = entry.rows if self._rows_of_positions else {}
        client: tuple[ClientData, ...] = ()
        if token is not None and token != _END:
            rows = rows or state.made
            state.num_made += 1
            state.update()
            if self._sequences.says_text:
                client = (TextDelta(WORDS[token]),)
        if rows and self._sends_raw and entry.request.is_final:
            client += tuple(RawRows(key, each.dtype.name, each.shape, each.tobytes()) for key, each in rows.items())
        handoff = self._handed_off(state, rows) if rows else {}
        if entry.finish_reason is None:
            return StageOutput(handoff, client) if handoff or client else NOTHING
        usage = Usage(state.num_prompt, state.num_made)
        return StageOutput(handoff, client, finished=True, finish_reason=entry.finish_reason, usage=usage)

    def _handed_off(self, state: SequenceState, rows: Arrays) -> dict[str, Arrays]:
        if state.has_begun:
            return {self._consumer: rows}
        state.has_begun = True
        once = {key: codec.rows_of(state.number, 0, 1)[0] for key, codec in self._once.items()}
        return {self._consumer: {**rows, **once}}


def _last_position(state: SequenceState) -> int:
    """The position that the last token is sampled from."""
    assert state.total is not None, "a stage that gives a row per position knows the length of its answer"
    return state.num_prompt + state.total - 2


def _inspector(
    stage: str, producer: str, stages: dict[str, StageProfile], options: Mapping[str, object]
) -> Inspector | None:
    """What checks the stage's input; None for an entry stage."""
    hand_off = stages[producer].hands_off if producer else None
    return Inspector(stage, producer, hand_off, Check(str(options["check"]))) if hand_off is not None else None
