"""What the operator has set for one api-server.

In: the `server` part of a deployment, and the pipeline. Out: one frozen value.
Does not know: what is done with a setting.
"""

from dataclasses import dataclass
from typing import Self

from antiphon.config.deploy import ServerDeploy
from antiphon.config.pipeline import PipelineSpec

_MIB = 1 << 20
_OPENAI_NAMES = {
    "speech": ("tts-1", "tts-1-hd", "gpt-4o-mini-tts"),
    "chat": (
        *("gpt-4o-audio-preview", "gpt-4o-mini-audio-preview"),
        *("gpt-realtime", "gpt-realtime-mini", "gpt-4o-realtime-preview", "gpt-4o-mini-realtime-preview"),
    ),
    "transcription": ("whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe"),
}
"""Task -> the model names that OpenAI's clients send for it, some of them without a way to send another."""


@dataclass(frozen=True)
class ServerSettings:
    """Limits, names and keys of one api-server. `model_aliases` are served beside the pipeline's own name.

    api_key_digests: see KeyRing. trusted_proxies: see Callers. cors_origins: see Origins.
    """

    max_body_bytes: int = 32 * _MIB
    max_text_chars: int = 20_000
    max_audio_s: float = 1800.0
    max_pixels: int = 32_000_000
    max_video_frames: int = 128
    video_frames_per_s: float = 2.0
    client_read_deadline_s: float = 60.0
    client_send_deadline_s: float = 300.0
    websocket_idle_s: float = 600.0
    websocket_max_s: float = 3600.0
    realtime_max_turn_s: float = 300.0
    model_aliases: tuple[str, ...] = tuple(name for names in _OPENAI_NAMES.values() for name in names)
    api_key_digests: tuple[str, ...] = ()
    trusted_proxies: str = ""
    cors_origins: str = ""

    @classmethod
    def from_deploy(cls, deploy: ServerDeploy, pipeline: PipelineSpec, api_key_digests: tuple[str, ...] = ()) -> Self:
        """The operator's limits, and OpenAI's names for the tasks that `pipeline` has."""
        tasks = {task.name for task in pipeline.tasks}
        aliases = (name for task, names in _OPENAI_NAMES.items() if task in tasks for name in names)
        return cls(
            max_body_bytes=deploy.max_body_mib * _MIB,
            max_text_chars=deploy.max_text_chars,
            max_audio_s=deploy.max_audio_s,
            max_pixels=deploy.max_pixels,
            max_video_frames=deploy.max_video_frames,
            video_frames_per_s=deploy.video_frames_per_s,
            client_read_deadline_s=deploy.client_read_deadline_s,
            client_send_deadline_s=deploy.client_send_deadline_s,
            websocket_idle_s=deploy.websocket_idle_s,
            websocket_max_s=deploy.websocket_max_s,
            realtime_max_turn_s=deploy.realtime_max_turn_s,
            model_aliases=tuple(aliases),
            api_key_digests=api_key_digests,
            trusted_proxies=deploy.trusted_proxies,
            cors_origins=deploy.cors_origins,
        )
