"""What a benchmark asks: prompts of random or fixed length, or those of a file.

In: ranges of lengths, a seed, a file. Out: Prompts. Does not know: HTTP, tokenizers; a token of a made-up prompt is
one short word, and what the server counted stands beside it in the report.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from antiphon.errors import ConfigError

_WORDS = (
    "the",
    "sea",
    "is",
    "deep",
    "and",
    "blue",
    "we",
    "sail",
    "by",
    "day",
    "sun",
    "low",
    "wind",
    "up",
    "far",
    "home",
)


@dataclass(frozen=True)
class TokenRange:
    """Lengths from low to high, both of them included."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> "TokenRange":
        """`900` or `600:1200`; ConfigError for anything else."""
        low, colon, high = text.partition(":")
        if not low.isdigit() or (colon and not high.isdigit()) or not 0 < int(low) <= int(high or low):
            raise ConfigError([f"{text!r} is no number of tokens; write 900, or 600:1200 for a random one"])
        return cls(int(low), int(high or low))

    @property
    def mean(self) -> float:
        """The expected length."""
        return (self.low + self.high) / 2


@dataclass(frozen=True)
class Prompt:
    """One question. num_input_tokens: its words. max_tokens: the length of the answer, 0 to let the model end."""

    text: str
    num_input_tokens: int
    max_tokens: int


class _FilePrompt(msgspec.Struct, frozen=True):
    prompt: str
    max_tokens: int = 0


def made_up_prompts(count: int, input_tokens: TokenRange, output_tokens: TokenRange, seed: int) -> list[Prompt]:
    """Prompts that differ from the first word on; the same seed gives the same ones."""
    rng = np.random.default_rng((seed, 1))
    lengths = rng.integers(input_tokens.low, input_tokens.high + 1, count)
    answers = rng.integers(output_tokens.low, output_tokens.high + 1, count)
    prompts = []
    for number, (length, max_tokens) in enumerate(zip(lengths, answers, strict=True)):
        words = [_WORDS[index] for index in rng.integers(0, len(_WORDS), length - 1)]
        prompts.append(Prompt(" ".join([f"{number}", *words]), int(length), int(max_tokens)))
    return prompts


def prompts_of_file(path: Path, count: int, output_tokens: TokenRange | None, seed: int) -> list[Prompt]:
    """One prompt per line, as text or as {"prompt": ..., "max_tokens": ...}; from the start again when they run out.

    A line's own max_tokens comes first, then `output_tokens`; without both the model ends where it likes.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        found = [_read_line(line) for line in lines]
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise ConfigError([f"cannot read prompts from {path}: {error}"]) from error
    if not found:
        raise ConfigError([f"there is no prompt in {path}; write one per line"])
    rng = np.random.default_rng((seed, 1))
    drawn = [0] * count if output_tokens is None else rng.integers(output_tokens.low, output_tokens.high + 1, count)
    chosen = [found[number % len(found)] for number in range(count)]
    return [
        Prompt(line.prompt, len(line.prompt.split()), line.max_tokens or int(max_tokens))
        for line, max_tokens in zip(chosen, drawn, strict=True)
    ]


def _read_line(line: str) -> _FilePrompt:
    if not line.startswith("{"):
        return _FilePrompt(line)
    return msgspec.json.decode(line, type=_FilePrompt)
