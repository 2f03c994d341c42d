"""Sequences that count, and a runner for them whose device works beside the host: its steps end when a test says so.

In: prompts, rows [n, 2] int64 (position, token). Out: the same rows of every position, and tokens: `after` the last.
"""

from dataclasses import dataclass, field

import numpy as np

from antiphon.messages.client import TextDelta
from antiphon.stage.engine.launched_step import HostStep, LaunchedStep
from antiphon.stage.engine.sequence_model import Accepted, ComputedSpan, Span
from antiphon.stage.request import Arrays, StageOutput, StageRequest

VOCABULARY = 97


def after(token: int) -> int:
    """The next token."""
    return (token * 5 + 3) % VOCABULARY


@dataclass
class Counting:
    """A sequence's tokens. num_prompt: of them were given; has_ended: there will be no more of those."""

    ids: list[int] = field(default_factory=list)
    num_prompt: int = 0
    has_ended: bool = False


class CountingModel:
    """Each request gets `num_tokens`."""

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens

    def open(self, request: StageRequest) -> Counting:
        return Counting()

    def receive(self, request: StageRequest, state: Counting, rows: dict[str, Arrays], ended: bool) -> None:
        new = rows["client"]["row"][:, 1].tolist() if "row" in rows["client"] else []
        state.ids += new
        state.num_prompt += len(new)
        state.has_ended = ended

    def num_positions(self, state: Counting) -> int:
        return len(state.ids) if state.has_ended else 0

    def accept(self, batch: list[Accepted[Counting]]) -> list[StageOutput]:
        return [self._accept(entry) for entry in batch]

    def _accept(self, entry: Accepted[Counting]) -> StageOutput:
        state, rows = entry.state, entry.rows["row"]
        if entry.token is not None:
            state.ids.append(entry.token)
        is_last = len(state.ids) == state.num_prompt + self.num_tokens
        label = np.frombuffer(entry.request.request_id.encode(), np.uint8)
        handoff = {consumer: {"row": rows, "label": label} for consumer in entry.request.consumers}
        client = tuple(TextDelta(f"{token} ") for token in rows[:, 1].tolist()) if entry.request.is_final else ()
        return StageOutput(handoff if len(rows) else {}, client, finished=is_last)


@dataclass(eq=False)
class DeviceStep:
    """A step that a device is working on. It may end in an error."""

    runner: "DeviceRunner"
    spans: list[Span[Counting]]
    inputs: list[list[int]]

    def is_over(self) -> bool:
        return self.runner.is_over

    def collect(self) -> list[ComputedSpan]:
        self.runner.note(f"collect {self.runner.num_launched}")
        self.runner.running = None
        return self.runner.computed(self.spans, self.inputs)


class DeviceRunner:
    """Reads the states at the launch, as a device does that has been sent its inputs.

    is_over: the step that runs is. guilty: a step with such a request raises when it is collected. events: launches and
    collections, in order.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.running: DeviceStep | None = None
        self.num_launched = 0
        self.guilty: set[str] = set()
        self.events: list[str] = []
        self.batches: list[list[str]] = []

    def startup(self) -> None: ...

    def launch(self, spans: list[Span[Counting]], blocks: list[list[int]]) -> LaunchedStep[ComputedSpan]:
        assert self.running is None, "one step at a time"
        self.num_launched += 1
        self.is_over = False
        self.note(f"launch {self.num_launched}")
        self.batches.append([span.request.request_id for span in spans])
        self.running = DeviceStep(self, spans, [span.state.ids[span.start : span.stop] for span in spans])
        return self.running

    def fileno(self) -> int | None:
        return None

    def forget(self, request_id: str) -> None: ...

    def close(self) -> None: ...

    def note(self, event: str) -> None:
        self.events.append(event)

    def computed(self, spans: list[Span[Counting]], inputs: list[list[int]]) -> list[ComputedSpan]:
        bad = self.guilty.intersection(span.request.request_id for span in spans)
        if bad:
            raise RuntimeError(f"a fault of the device, by {bad}")
        return [self._computed(span, ids) for span, ids in zip(spans, inputs, strict=True)]

    def _computed(self, span: Span[Counting], ids: list[int]) -> ComputedSpan:
        rows = np.array([range(span.start, span.stop), ids], np.int64).T
        return ComputedSpan({"row": rows}, after(ids[-1]) if span.samples else None)


class HostRunner(DeviceRunner):
    """The same on the host: a step is computed when it is launched."""

    def launch(self, spans: list[Span[Counting]], blocks: list[list[int]]) -> LaunchedStep[ComputedSpan]:
        return HostStep(super().launch(spans, blocks).collect())
