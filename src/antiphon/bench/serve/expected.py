"""The right answers to a benchmark's questions, for simulated pipelines, whose answers have a closed form.

In: a pipeline; then a prompt and what came. Out: the text and the samples that should have come.
Does not know: how an answer is read or compared.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from antiphon.bench.serve.messages import Record, Task
from antiphon.config.pipeline import PipelineSpec
from antiphon.models.simulated.generator import audio_codec
from antiphon.models.simulated.profile import load_profile
from antiphon.models.simulated.row_values import request_number, text_of
from antiphon.models.simulated.voice_pipeline import PIPELINE as SIM_VOICE
from antiphon.models.simulated.voice_values import spoken


@dataclass(frozen=True)
class Expected:
    """The whole text, and what makes the whole s16le samples."""

    text: str
    pcm: Callable[[], bytes]


Checker = Callable[[Task, str, Record], Expected]
"""Task, prompt, what came -> what should have come."""


def checker_of(spec: PipelineSpec | None) -> Checker | None:
    """None for pipelines and servers of whose answers nothing is known."""
    if spec is None:
        return None
    if spec is SIM_VOICE:
        return _of_sim_voice
    profile = spec.stages[-1].arguments.get("profile")
    return None if profile is None else partial(_of_profile, Path(str(profile)))


def _of_sim_voice(_task: Task, prompt: str, _record: Record) -> Expected:
    return Expected(prompt, partial(spoken, prompt))


def _of_profile(path: Path, _task: Task, _prompt: str, record: Record) -> Expected:
    """As long as it says it is; that its last row is the last one is part of the samples."""
    return Expected(text_of(record.answer_id, record.num_output_tokens), partial(_samples, path, record))


def _samples(path: Path, record: Record) -> bytes:
    profile = load_profile(path)
    (samples_per_row,) = (s.generator.samples_per_row for s in profile.stages.values() if s.generator is not None)
    num_rows = round(sum(record.audio_durations_s) * profile.sample_rate / samples_per_row)
    if not num_rows:
        return b""
    number = request_number(record.answer_id)
    return audio_codec(samples_per_row).rows_of(number, 0, num_rows, ends=True).astype("<i2").tobytes()
