"""How long each stage's steps take and what flows between the stages: all that an ideal runtime would be bound by.

In: plain numbers. Out: a PipelineTiming; the request rate at which a stage is full. Does not know: processes, arrivals.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise


class StageKind(StrEnum):
    """SEQUENCES: token after token, batched continuously, prompts in pieces. GENERATOR: takes the rows that came."""

    SEQUENCES = "sequences"
    GENERATOR = "generator"


@dataclass(frozen=True)
class StageTiming:
    """A step takes base + per_sequence x requests in it + per_token x positions beyond each one's first, in seconds.

    max_batch_size and rows_per_step (None: all that came) bound a GENERATOR's step, max_num_batched_tokens a SEQUENCES
    stage's. outputs_per_input: tokens of a SEQUENCES stage for each of the stage before (of the prompt, at the entry);
    0: as many as the request asks for. left_context_rows: rows that a GENERATOR computes again with new ones.
    row_s: how long a row sounds.
    """

    name: str
    kind: StageKind
    base_s: float
    per_sequence_s: float = 0.0
    per_token_s: float = 0.0
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 8192
    max_batch_size: int = 8
    rows_per_step: int | None = None
    left_context_rows: int = 0
    outputs_per_input: float = 0.0
    row_s: float = 0.0
    replicas: int = 1

    def step_s(self, num_sequences: int, num_more_tokens: int) -> float:
        """One step's time."""
        return self.base_s + self.per_sequence_s * num_sequences + self.per_token_s * num_more_tokens

    def num_outputs(self, num_inputs: int, num_asked: int) -> int:
        """Tokens of its answer; at least 1, because the end takes a step, too."""
        return max(1, int(num_inputs * self.outputs_per_input) if self.outputs_per_input else num_asked)


@dataclass(frozen=True)
class EdgeTiming:
    """Rows go on in chunks of at least `first_rows`, then at least `rows`; None for both: all of them at the end.

    of_positions: a row for every position of the producer's prompt and answer that is computed (the last token's is
    not), else one for every token of the answer. all_chunks: the consumer waits for the last one.

    A SEQUENCES consumer's prompt is the producer's (1 position without it). It begins when a row behind the prompt has
    come, and makes no more tokens than there are such rows, until the last one has come.
    """

    producer: str
    consumer: str
    first_rows: int | None = 1
    rows: int | None = 1
    of_positions: bool = False
    all_chunks: bool = False


@dataclass(frozen=True)
class Work:
    """What one request asks of one stage: positions of its prompt, and tokens of its answer (0 for a GENERATOR).

    num_rows: what a GENERATOR gets.
    """

    num_prompt: int
    num_outputs: int
    num_rows: int = 0


@dataclass(frozen=True)
class PipelineTiming:
    """A chain of stages, entry first, and the edge from each to the next; which stages speak to the client."""

    stages: tuple[StageTiming, ...]
    edges: tuple[EdgeTiming, ...] = ()
    text_stage: str = ""
    audio_stage: str = ""

    def __post_init__(self) -> None:
        chain = [(a.name, b.name) for a, b in pairwise(self.stages)]
        if chain != [(edge.producer, edge.consumer) for edge in self.edges]:
            raise ValueError(f"the edges do not lead along the stages {', '.join(s.name for s in self.stages)}")

    def work(self, num_input_tokens: int, num_output_tokens: int) -> list[Work]:
        """Per stage, for one request."""
        entry = self.stages[0]
        works = [Work(num_input_tokens, entry.num_outputs(num_input_tokens, num_output_tokens))]
        for stage, edge in zip(self.stages[1:], self.edges, strict=True):
            before = works[-1]
            num_rows = before.num_outputs if before.num_outputs else before.num_rows
            if edge.of_positions:
                num_rows += before.num_prompt - 1
            if stage.kind is StageKind.GENERATOR:
                works.append(Work(0, 0, num_rows))
            else:
                num_prompt = before.num_prompt if edge.of_positions else 1
                num_outputs = stage.num_outputs(before.num_outputs, num_output_tokens)
                works.append(Work(num_prompt, num_outputs, num_rows))
        return works

    def capacity_rps(self, num_input_tokens: int, num_output_tokens: int) -> dict[str, float]:
        """Stage -> requests per second of this size at which its replicas always run full steps."""
        works = self.work(num_input_tokens, num_output_tokens)
        plans: list[EdgeTiming | None] = [None, *self.edges]
        return {
            stage.name: stage.replicas / _busy_s(stage, work, edge)
            for stage, work, edge in zip(self.stages, works, plans, strict=True)
        }


def _busy_s(stage: StageTiming, work: Work, edge: EdgeTiming | None) -> float:
    """A replica's seconds per request when every step is full."""
    if stage.kind is StageKind.SEQUENCES:
        share_s = stage.base_s / stage.max_num_seqs + stage.per_sequence_s
        return work.num_outputs * share_s + (work.num_prompt - 1) * stage.per_token_s
    num_steps = _num_steps(stage, work.num_rows, edge)
    share_s = stage.base_s / min(stage.max_batch_size, stage.max_num_seqs) + stage.per_sequence_s
    again = stage.left_context_rows * (num_steps - 1)
    return num_steps * share_s + (work.num_rows + again - num_steps) * stage.per_token_s


def _num_steps(stage: StageTiming, num_rows: int, edge: EdgeTiming | None) -> int:
    """Steps of a GENERATOR that takes each chunk when it comes."""
    if edge is None or edge.first_rows is None or edge.rows is None or edge.all_chunks:
        sizes = [num_rows]
    else:
        later = max(0, num_rows - edge.first_rows)
        sizes = [min(edge.first_rows, num_rows)] + [edge.rows] * math.ceil(later / edge.rows)
    return sum(math.ceil(size / (stage.rows_per_step or size)) for size in sizes if size)
