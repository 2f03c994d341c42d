"""The protocols of what writes one position after the other: a model, and the runner that computes its steps.

In: spans, each a stretch of positions of one request. Out: named rows per position, tokens, and StageOutputs.
Does not know: scheduling, tensors, how a step is computed (torch: autoregressive_model.py), lanes, processes.

One request is one sequence of positions 0, 1, 2, ... The model's state knows the input of every position that can
be computed now: the prompt's, and one more for each token it has accepted (if that needs a row from upstream which
has not come, the sequence waits). The engine decides which positions a step computes; after a preemption it computes
old positions again, from the same inputs, and does not report their rows a second time.
"""

from typing import Generic, Protocol, TypeVar

import msgspec

from antiphon.stage.engine.launched_step import LaunchedStep
from antiphon.stage.request import Arrays, StageOutput, StageRequest

State = TypeVar("State")


class Span(msgspec.Struct, Generic[State], frozen=True):
    """Positions [start, stop) of one sequence in this step. `samples`: a token follows from the last one."""

    request: StageRequest
    state: State
    start: int
    stop: int
    samples: bool


class TokenScores(msgspec.Struct, frozen=True):
    """The log probability of a sampled token, and the likeliest (id, log probability), most likely first.

    As the model gave them, before temperature, penalties and bias.
    """

    logprob: float
    best: tuple[tuple[int, float], ...]


class Accepted(msgspec.Struct, Generic[State], frozen=True):
    """What a step made for one sequence.

    rows: name -> [n, ...] on the host, for the span's positions that were not reported before; `first_row` is the
    position of the first. token: the sampled id, or None if the span did not sample. finish_reason: set if the
    token ends the sequence ("stop": a stop id, which `token` then is; "length"). scores: the token's, if the request
    asks for them.
    """

    request: StageRequest
    state: State
    rows: Arrays
    first_row: int
    token: int | None
    finish_reason: str | None
    scores: TokenScores | None = None


class ComputedSpan(msgspec.Struct, frozen=True):
    """What a runner made of one span: rows name -> [stop - start, ...] on the host, and the token if it samples."""

    rows: Arrays
    token: int | None = None
    finish_reason: str | None = None
    scores: TokenScores | None = None


class SequenceModel(Protocol[State]):
    """What the engine asks of a model, however its steps are computed."""

    def open(self, request: StageRequest) -> State:
        """The state of a new request. AntiphonError if it can never be served."""

    def receive(self, request: StageRequest, state: State, rows: dict[str, Arrays], ended: bool) -> None:
        """Input rows have come: in-edge's producer -> key -> [n, ...], valid in this call only (copy what stays).

        ended: no more will come. Called at least once before the first span.
        """

    def num_positions(self, state: State) -> int:
        """Positions whose input is known now; 0 until the prompt is complete."""

    def accept(self, batch: list[Accepted[State]]) -> list[StageOutput]:
        """Take in what the step made, one entry per span: append tokens to the states, say what goes where.

        Where finish_reason is set the output must be `finished`; it may be so elsewhere too, to end a sequence for a
        reason of the model's own (a stop string). An exception makes the engine hand the entries over again one by
        one, so a state may change only when the call can no longer fail.
        """


class SequenceRunner(Protocol[State]):
    """Computes steps, one at a time."""

    def startup(self) -> None:
        """Load what it computes with. Errors end the process with their message."""

    def launch(self, spans: list[Span[State]], blocks: list[list[int]]) -> LaunchedStep[ComputedSpan]:
        """Begin a step: it makes one ComputedSpan per span, in order. blocks: of the KV cache, per span.

        A device goes on by itself, and the runner does not wait for it: meanwhile the states may `receive`, and a
        request may end. What is computed on the host is a HostStep. An exception, here or when the step is collected,
        makes the engine try the spans one by one, so that only the guilty fail.
        """

    def fileno(self) -> int | None:
        """Readable while a launched step is over that was not collected; None where all of them are HostSteps."""

    def forget(self, request_id: str) -> None:
        """The sequence is over, though it may be in the launched step; unknown ids are ignored."""

    def close(self) -> None:
        """Free what it computes with."""
