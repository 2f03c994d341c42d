"""The Frontend protocol: a pipeline's own way from a task's input to entry arrays.

In: a TaskInput. Out: an EntryPayload, or an InvalidRequestError before anything was sent.
Does not know: processes, lanes, HTTP.
"""

from dataclasses import dataclass
from typing import Protocol, cast

from antiphon.config.pipeline import PipelineSpec
from antiphon.messages.payload import EntryPayload
from antiphon.messages.tasks import TaskInput
from antiphon.models.registry import load_attribute


@dataclass(frozen=True)
class FrontendLimits:
    """The largest inputs that the operator allows."""

    max_text_chars: int
    max_audio_s: float
    max_pixels: int
    max_video_frames: int


class Frontend(Protocol):
    """Validates and converts inputs. Built once per process as `Class(limits)`."""

    def prepare(self, task_input: TaskInput) -> EntryPayload:
        """Check everything and convert; InvalidRequestError (with `param`) or UnsupportedModalityError."""


def load_frontend(pipeline: PipelineSpec, limits: FrontendLimits) -> Frontend:
    """The frontend class that the pipeline names, built."""
    frontend_class = load_attribute(pipeline.frontend)
    assert isinstance(frontend_class, type), f"{pipeline.frontend} is not a class"
    return cast(Frontend, frontend_class(limits))
