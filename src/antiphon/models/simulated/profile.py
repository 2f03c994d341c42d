"""A simulated pipeline's numbers: the shapes and times of a real one, read from one YAML file.

In: the file's path. Out: a Profile, checked. Does not know: pipelines' specs, arrays, how the numbers are used.
A key that is not known is an error, as is a shape that cannot be read.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import yaml
from msgspec import Meta

from antiphon.config.pipeline import DTYPES, OptionValue
from antiphon.errors import ConfigError

Millis = Annotated[float, Meta(ge=0.0, le=1e7)]
Count = Annotated[int, Meta(ge=1, le=10**9)]
CountOrZero = Annotated[int, Meta(ge=0, le=10**9)]
_OPTIONS = {
    "base_ms": "step",
    "per_sequence_ms": "step",
    "per_token_ms": "step",
    "jitter": "step",
    "natural_tokens": "sequences",
    "per_word": "sequences",
    "left_context_rows": "generator",
    "hidden_states_lane": "hands_off",
}
"""Option -> the part of a stage's profile that has it."""
_ARRAY = re.compile(r"(\w+)\[(\d+(?:, ?\d+)*)\]")


class StepTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long a step sleeps: base + per_sequence x sequences + per_token x the positions beyond each one's first.

    jitter: the largest relative difference from that, drawn evenly from a seeded stream.
    """

    base_ms: Millis
    per_sequence_ms: Millis = 0.0
    per_token_ms: Millis = 0.0
    jitter: Annotated[float, Meta(ge=0.0, le=0.9)] = 0.0

    def seconds(self, num_sequences: int, num_more_tokens: int) -> float:
        """Without jitter."""
        return (self.base_ms + self.per_sequence_ms * num_sequences + self.per_token_ms * num_more_tokens) / 1000


class Sequences(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stage that writes one token after the other, on the real scheduler.

    natural_tokens: the length of an answer that the client does not cut; 0: per_word tokens for each word of the input
    (a text's words, or the tokens that the stage before wrote).
    """

    max_num_batched_tokens: Count
    num_kv_blocks: Count
    natural_tokens: CountOrZero = 0
    per_word: Annotated[float, Meta(ge=0.0, le=1e4)] = 0.0
    says_text: bool = False


class Generator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stage that turns rows into audio, or all of its rows into one picture.

    rows_per_step: null takes all that have come. left_context_rows are computed again with new ones: they cost time.
    """

    max_batch_size: Count
    rows_per_step: Count | None = None
    left_context_rows: CountOrZero = 0
    samples_per_row: CountOrZero = 0
    height: CountOrZero = 0
    width: CountOrZero = 0


class HandOff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a stage gives to the next one.

    rows_of: `positions` gives a row for each position of the prompt and of the answer that was computed, `tokens` one
    for each token. per_row and once: key -> `dtype[size, ...]`, of a row, or of what belongs to the request as a whole.
    first_rows and rows: the chunk plan; null for both: everything when the stage has finished.
    may_be_empty: a request without any row is no error. hidden_states_lane: `both` sends the rows to the client's
    side, too; "": the option is not there.
    """

    to: str
    rows_of: Literal["positions", "tokens"]
    per_row: dict[str, str]
    once: dict[str, str] = {}
    first_rows: Count | None = None
    rows: Count | None = None
    may_be_empty: bool = False
    hidden_states_lane: Literal["", "next", "both"] = ""


class StageProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One stage: either `sequences` or `generator`."""

    step: StepTime
    max_num_seqs: Count
    sequences: Sequences | None = None
    generator: Generator | None = None
    hands_off: HandOff | None = None

    def options(self) -> dict[str, OptionValue]:
        """What the operator may change by itself, with its value here."""
        groups = msgspec.to_builtins(self)
        values = {name: groups[group][name] for name, group in _OPTIONS.items() if groups[group] is not None}
        return {name: value for name, value in values.items() if value != ""}

    def with_options(self, options: Mapping[str, OptionValue]) -> "StageProfile":
        """The same stage with the operator's values; names that are not in `options()` are left out."""
        groups = msgspec.to_builtins(self)
        for name in self.options().keys() & options.keys():
            groups[_OPTIONS[name]][name] = options[name]
        return msgspec.convert(groups, StageProfile)


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole pipeline. tasks: name -> final stage per modality; the first stage is the entry of all."""

    name: str
    stages: dict[str, StageProfile]
    tasks: dict[str, dict[str, str]]
    sample_rate: Count = 24_000
    seed: CountOrZero = 0

    def producer_of(self, stage: str) -> str:
        """The stage that hands off to `stage`, or "" for the entry."""
        for name, profile in self.stages.items():
            if profile.hands_off is not None and profile.hands_off.to == stage:
                return name
        return ""


def load_profile(path: Path) -> Profile:
    """ConfigError with every problem of the file at `path`."""
    try:
        profile = msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), Profile)
    except (OSError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise ConfigError([f"profile {path.name}: {error}"]) from error
    problems = [
        f"profile {path.name}, stage {name}: {problem}"
        for name, stage in profile.stages.items()
        for problem in _problems(stage)
    ]
    if problems:
        raise ConfigError(problems)
    return profile


def array_of(text: str) -> tuple[str, tuple[int, ...]]:
    """`bfloat16[2048]` -> dtype and shape."""
    match = _ARRAY.fullmatch(text)
    if match is None or match[1] not in DTYPES:
        raise ValueError(f"{text!r} is no array; write dtype[size, ...] with a dtype of {', '.join(DTYPES)}")
    return match[1], tuple(int(size) for size in match[2].split(","))


def _problems(stage: StageProfile) -> list[str]:
    found = []
    if (stage.sequences is None) is (stage.generator is None):
        found.append("give one of `sequences` and `generator`")
    if stage.sequences is not None and stage.sequences.natural_tokens and stage.sequences.per_word:
        found.append("give one of `natural_tokens` and `per_word`")
    if stage.generator is not None and bool(stage.generator.samples_per_row) is bool(stage.generator.height):
        found.append("a generator makes audio (`samples_per_row`) or a picture (`height` and `width`)")
    arrays = {**stage.hands_off.per_row, **stage.hands_off.once} if stage.hands_off is not None else {}
    for text in arrays.values():
        try:
            array_of(text)
        except ValueError as error:
            found.append(str(error))
    return found
