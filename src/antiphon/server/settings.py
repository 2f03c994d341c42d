"""What the operator has set for one api-server.

In: a deployment, and the pipeline. Out: one frozen value.
Does not know: what is done with a setting.
"""

from dataclasses import dataclass, field
from typing import Self

from antiphon.config.deploy import DeployConfig, ServerDeploy
from antiphon.config.pipeline import Modality, PipelineSpec

_OPENAI_NAMES = {
    "speech": ("tts-1", "tts-1-hd", "gpt-4o-mini-tts"),
    "chat": (
        *("gpt-4o-audio-preview", "gpt-4o-mini-audio-preview"),
        *("gpt-realtime", "gpt-realtime-mini", "gpt-realtime-1.5", "gpt-realtime-2", "gpt-realtime-2.1"),
        *("gpt-realtime-2.1-mini", "gpt-4o-realtime-preview", "gpt-4o-mini-realtime-preview"),
    ),
    "transcription": ("whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe"),
}
"""Task -> the model names that OpenAI's clients send for it, some of them without a way to send another."""


@dataclass(frozen=True)
class ServerSettings:
    """The operator's part and what follows from it. `model_aliases` are served beside the pipeline's own name.

    api_key_digests: see KeyRing. heard_languages: see ModelCatalogue.
    """

    deploy: ServerDeploy = field(default_factory=ServerDeploy)
    model_aliases: tuple[str, ...] = tuple(name for names in _OPENAI_NAMES.values() for name in names)
    api_key_digests: tuple[str, ...] = ()
    heard_languages: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: DeployConfig, pipeline: PipelineSpec, api_key_digests: tuple[str, ...] = ()) -> Self:
        """With OpenAI's names for the tasks that `pipeline` has."""
        tasks = {task.name for task in pipeline.tasks}
        aliases = (name for task, names in _OPENAI_NAMES.items() if task in tasks for name in names)
        return cls(config.server, tuple(aliases), api_key_digests, _heard_languages(config, pipeline))


def _heard_languages(config: DeployConfig, pipeline: PipelineSpec) -> tuple[str, ...]:
    """Those of the packaged weights; empty if the operator has given others, of which nothing is known here."""
    for task in pipeline.tasks:
        if task.name == "transcription" and not config.stages[task.entries[Modality.AUDIO]].model:
            return task.languages
    return ()
