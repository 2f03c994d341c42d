"""What a model author writes: stages, edges, outputs and tasks of one pipeline.

In: plain values. Out: a PipelineSpec and the Route of a request through it.
Does not know: replicas, devices, processes, or any model's code (names are import paths).
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import assert_never

from antiphon.errors import InvalidRequestError, UnsupportedModalityError
from antiphon.ids import edge_name

DTYPES = ("uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "bool")
FLOATING = "floating"
"""As an OutputSpec's dtype: float32, float16 or bfloat16, whichever the weights of the stage have."""
CLIENT = "client"
"""The producer's name of an entry edge, `client->talker`; no stage may have it."""


class Modality(StrEnum):
    """What a client sends or receives."""

    TEXT = "text"
    AUDIO = "audio"
    IMAGE = "image"
    VIDEO = "video"


class EngineKind(StrEnum):
    """Which StageEngine runs a stage."""

    GENERATION = "generation"
    AUTOREGRESSIVE = "autoregressive"
    LLAMA_CPP = "llama_cpp"
    SIMULATED = "simulated"
    """The engine of sequences on a runner that sleeps; see docs/simulated.md."""


class TextOption(StrEnum):
    """What a stage that writes a chat's answer may honour besides the basic SamplingParams."""

    LOGPROBS = "log probabilities"
    PENALTIES = "presence and frequency penalties"
    LOGIT_BIAS = "logit bias"
    JSON = "answers in JSON"
    TOOLS = "tools"


class Lane(StrEnum):
    """Where a declared output may go."""

    HANDOFF = "handoff"
    CLIENT = "client"
    BOTH = "both"


class Layout(StrEnum):
    """PER_ROW: one row per token or frame along axis 0. WHOLE: one array that belongs to the request."""

    PER_ROW = "per_row"
    WHOLE = "whole"


class Policy(StrEnum):
    """What a second array of the same key does: APPEND along axis 0 (PER_ROW), or REPLACE the first (WHOLE)."""

    APPEND = "append"
    REPLACE = "replace"


class ClientKind(StrEnum):
    """Which client-lane message an output becomes."""

    TEXT = "text"
    TOKENS = "tokens"
    AUDIO = "audio"
    IMAGE = "image"
    RAW = "raw"


class StartWhen(StrEnum):
    """When a consumer may start on an edge's input."""

    FIRST_CHUNK = "first_chunk"
    ALL_CHUNKS = "all_chunks"


@dataclass(frozen=True)
class OutputSpec:
    """One key that a stage produces, declared once.

    dtype is a numpy dtype name or FLOATING; row_shape is the shape behind axis 0 (None = any size); `client` says
    which client-lane message a key on the CLIENT or BOTH lane becomes.
    """

    key: str
    lane: Lane
    dtype: str
    row_shape: tuple[int | None, ...] = ()
    layout: Layout = Layout.PER_ROW
    policy: Policy = Policy.APPEND
    client: ClientKind | None = None

    def problems(self, stage: str) -> list[str]:
        """Everything wrong with this declaration, each as one sentence."""
        where = f"stage {stage}, output {self.key!r}"
        found = []
        if self.dtype not in (*DTYPES, FLOATING):
            found.append(f"{where}: unknown dtype {self.dtype!r}; one of {', '.join(DTYPES)}")
        if self.layout is Layout.PER_ROW and self.policy is Policy.REPLACE:
            found.append(f"{where}: rows cannot be replaced; use layout=WHOLE or policy=APPEND")
        if self.layout is Layout.WHOLE and self.policy is Policy.APPEND:
            found.append(f"{where}: an array of the whole request is replaced; use policy=REPLACE, or layout=PER_ROW")
        if (self.client is None) is not (self.lane is Lane.HANDOFF):
            found.append(f"{where}: `client` must be given for the lanes CLIENT and BOTH, and only for them")
        return found


OptionValue = bool | int | float | str


@dataclass(frozen=True)
class OptionSpec:
    """A value that a stage's model reads and the operator may change: `stages.<stage>.options.<name>`.

    It keeps the type of its default (a whole number may stand for a float). A number is at least `least`; a word is
    one of `choices`.
    """

    name: str
    default: OptionValue
    least: float = 0.0
    choices: tuple[str, ...] = ()

    def problem(self, value: object) -> str:
        """What is wrong with `value`, or ""."""
        kind = type(self.default)
        if type(value) is not kind and not (kind is float and type(value) is int):
            return f"expected {kind.__name__}"
        if isinstance(value, str):
            return "" if value in self.choices else f"expected one of {', '.join(self.choices)}"
        if isinstance(value, int | float) and not self.least <= value < math.inf:
            return f"expected at least {self.least:g}"
        return ""


@dataclass(frozen=True)
class StageSpec:
    """One network (or processing step) in a process of its own.

    `model` is "package.module:Class", imported only in the stage's process. `max_num_seqs` bounds the requests that
    are in the engine at once, `max_batch_size` those of one step, `threads` the CPU threads of the network.
    max_num_batched_tokens (positions per step) and num_kv_blocks (of 16 positions) bound an autoregressive stage;
    captures_decode says that its model is a CapturableModel.
    `alternatives`: other engines that an operator may choose, with their models. `entry_start_when` is the start_when
    of a client's input, where requests enter at this stage. `arguments`: what `model` is called with, where one class
    serves several stages. `options`: further values that the operator may change. `text_options`: what a stage that
    ends a chat's text honours, by engine; the rest is refused. `takes_device`: a generation model that loads its
    network on ModelContext.device; of the other engines, `autoregressive` always does, and no other.
    """

    name: str
    engine: EngineKind
    model: str
    outputs: tuple[OutputSpec, ...] = ()
    max_num_seqs: int = 32
    max_batch_size: int = 8
    threads: int = 1
    max_num_batched_tokens: int = 2048
    num_kv_blocks: int = 512
    captures_decode: bool = False
    alternatives: dict[EngineKind, str] = field(default_factory=dict)
    entry_start_when: StartWhen = StartWhen.FIRST_CHUNK
    arguments: dict[str, str] = field(default_factory=dict)
    options: tuple[OptionSpec, ...] = ()
    text_options: dict[EngineKind, frozenset[TextOption]] = field(default_factory=dict)
    takes_device: bool = False

    def devices_are_taken_by(self, engine: EngineKind) -> bool:
        """True if this stage, run by `engine`, works on the device that an operator names."""
        match engine:
            case EngineKind.AUTOREGRESSIVE:
                return True
            case EngineKind.GENERATION:
                return self.takes_device
            case EngineKind.LLAMA_CPP | EngineKind.SIMULATED:
                return False
            case _:
                assert_never(engine)

    def output(self, key: str) -> OutputSpec | None:
        """The declaration of `key`, or None."""
        return next((output for output in self.outputs if output.key == key), None)

    @property
    def client_kinds(self) -> frozenset[ClientKind]:
        """The kinds of client-lane messages this stage may make."""
        return frozenset(output.client for output in self.outputs if output.client is not None)


@dataclass(frozen=True)
class ChunkPlan:
    """How many rows make a chunk: at least `first_rows` in the first one, at least `rows` in later ones.

    None for both is WHOLE: one chunk when the producer has finished.
    """

    first_rows: int | None
    rows: int | None

    @property
    def is_whole(self) -> bool:
        """True if nothing leaves before the producer has finished."""
        return self.first_rows is None or self.rows is None


WHOLE = ChunkPlan(None, None)


@dataclass(frozen=True)
class EdgeSpec:
    """A hand-off from one stage to the next: which keys, in which chunks, and when the consumer starts."""

    producer: str
    consumer: str
    keys: tuple[str, ...]
    chunk_plan: ChunkPlan = ChunkPlan(1, 1)
    start_when: StartWhen = StartWhen.FIRST_CHUNK

    @property
    def name(self) -> str:
        """`thinker->talker`."""
        return edge_name(self.producer, self.consumer)


@dataclass(frozen=True)
class EdgeRule:
    """How one in-edge releases a request to its consumer's scheduler, and how long it may be silent."""

    edge: str
    start_when: StartWhen
    deadline_s: float


@dataclass(frozen=True)
class TaskSpec:
    """What a client can ask for: where a request enters, by its input, and where each output modality leaves.

    chars_per_request: for speech: a longer text is spoken as several requests of whole clauses, one after the other,
    so that its stages wait for a client that reads slowly. 0 = every text is one request. It should be about a minute.
    languages: for transcription: codes of those that the packaged weights understand. Empty: whatever the stage takes.
    """

    name: str
    entries: dict[Modality, str]
    finals: dict[Modality, str]
    chars_per_request: int = 0
    languages: tuple[str, ...] = ()

    @property
    def text_stage(self) -> str:
        """The stage whose end tells why the text ended, and the usage."""
        return self.finals[Modality.TEXT]


@dataclass(frozen=True)
class Route:
    """The part of a pipeline that one request crosses: stages in topological order."""

    task: str
    entry: str
    finals: tuple[str, ...]
    stages: tuple[str, ...]
    edges: tuple[EdgeSpec, ...]

    @cached_property
    def producers(self) -> dict[str, dict[str, str]]:
        """Stage -> edge -> the stage whose rows come on it; the entry edge, from "client", is not among them."""
        return {
            stage: {edge.name: edge.producer for edge in self.edges if edge.consumer == stage} for stage in self.stages
        }

    @cached_property
    def last_stages(self) -> frozenset[str]:
        """Those that hand nothing on."""
        return frozenset(stage for stage in self.stages if not self.consumers[stage])

    @cached_property
    def consumers(self) -> dict[str, dict[str, str]]:
        """Stage -> edge -> the stage that its rows go to on it."""
        return {
            stage: {edge.name: edge.consumer for edge in self.edges if edge.producer == stage} for stage in self.stages
        }


@dataclass(frozen=True)
class VoiceSpec:
    """A voice that clients may name, and the names it also answers to."""

    name: str
    language: str
    aliases: tuple[str, ...] = ()


def voice_named(voices: tuple[VoiceSpec, ...], name: str, param: str = "voice") -> VoiceSpec | None:
    """The voice that answers to `name`; "" is the first. None if there are no voices: then every name is the model's.

    InvalidRequestError about the request's `param`, with all names, if none does.
    """
    for voice in voices:
        if name in ("", voice.name, *voice.aliases):
            return voice
    if not voices:
        return None
    known = ", ".join(known for voice in voices for known in (voice.name, *voice.aliases))
    raise InvalidRequestError(f"`{param}`: there is no voice {name[:80]!r}; use one of {known}", param=param)


@dataclass(frozen=True)
class PipelineSpec:
    """A whole multi-stage model. `frontend` ("package.module:Class") turns a task's inputs into entry arrays."""

    name: str
    stages: tuple[StageSpec, ...]
    edges: tuple[EdgeSpec, ...]
    tasks: tuple[TaskSpec, ...]
    frontend: str
    voices: tuple[VoiceSpec, ...] = ()
    sample_rate: int = 24_000

    def stage(self, name: str) -> StageSpec:
        """The stage called `name`; KeyError if there is none."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    def task(self, name: str) -> TaskSpec:
        """The task called `name`; UnsupportedModalityError naming the tasks there are."""
        for task in self.tasks:
            if task.name == name:
                return task
        known = ", ".join(task.name for task in self.tasks)
        raise UnsupportedModalityError(f"pipeline {self.name} has no task {name!r}; it has {known}", param="model")

    def out_edges(self, stage: str) -> tuple[EdgeSpec, ...]:
        """The edges that leave `stage`."""
        return tuple(edge for edge in self.edges if edge.producer == stage)

    def route(self, task_name: str, inputs: frozenset[Modality], outputs: frozenset[Modality]) -> Route:
        """The stages a request crosses: those between its entry and the finals of the modalities it asked for.

        The entry is that of the task's last-listed entry modality that the request carries. Every route is worked out
        once.
        """
        wanted = (task_name, inputs, outputs)
        if wanted not in self._routes:
            self._routes[wanted] = self._find_route(*wanted)
        return self._routes[wanted]

    @cached_property
    def _routes(self) -> dict[tuple[str, frozenset[Modality], frozenset[Modality]], Route]:
        return {}

    def _find_route(self, task_name: str, inputs: frozenset[Modality], outputs: frozenset[Modality]) -> Route:
        task = self.task(task_name)
        unknown = sorted(outputs - task.finals.keys()) or sorted(inputs - task.entries.keys())
        if unknown or not outputs or not inputs:
            raise UnsupportedModalityError(
                f"task {task_name} takes {', '.join(task.entries)} and gives {', '.join(task.finals)}, "
                f"not {', '.join(unknown) or 'nothing'}",
                param="modalities",
            )
        entry = next(stage for modality, stage in reversed(task.entries.items()) if modality in inputs)
        finals = tuple(stage for modality, stage in task.finals.items() if modality in outputs)
        useful = self.downstream(entry) & self._upstream(set(finals))
        stages = tuple(stage.name for stage in self.stages if stage.name in useful)
        edges = tuple(e for e in self.edges if e.producer in useful and e.consumer in useful)
        return Route(task_name, entry, finals, stages, edges)

    def downstream(self, entry: str) -> set[str]:
        """`entry`, and every stage that edges lead to from there."""
        return _reached({entry}, [(edge.producer, edge.consumer) for edge in self.edges])

    def _upstream(self, finals: set[str]) -> set[str]:
        return _reached(finals, [(edge.consumer, edge.producer) for edge in self.edges])


def _reached(names: set[str], steps: list[tuple[str, str]]) -> set[str]:
    """`names`, and all that steps lead to from there."""
    reached = set(names)
    while more := {target for source, target in steps if source in reached} - reached:
        reached |= more
    return reached
