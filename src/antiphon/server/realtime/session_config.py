"""What a realtime session is set to: how it hears, when it answers, how it speaks.

In: the parts of a `session.update` that the client sent. Out: frozen values, and the session as OpenAI's JSON.
Does not know: events, audio, models.
"""

from dataclasses import asdict, dataclass, replace
from typing import TypeVar

from msgspec import structs

from antiphon.config.pipeline import Modality, PipelineSpec, VoiceSpec, voice_named
from antiphon.errors import InvalidRequestError, UnsupportedModalityError
from antiphon.messages.params import SamplingParams
from antiphon.server.json_object import Json
from antiphon.server.models import check_heard_language
from antiphon.server.realtime.schema import ResponsePatch, SessionPatch, TranscriptionPatch, TurnPatch
from antiphon.server.realtime.turn_detection import ServerVad, TurnDetection, patched
from antiphon.server.realtime.wire_audio import WireFormat


@dataclass(frozen=True)
class Transcription:
    """What the client hears of its own words."""

    model: str = ""
    language: str = ""
    prompt: str = ""


@dataclass(frozen=True)
class Abilities:
    """What the pipeline can do in a session. hears_by_writing: the stage that hears a chat is the one that writes."""

    hears: bool
    speaks: bool
    writes: bool
    hears_by_writing: bool
    detects_turns: bool
    voices: tuple[VoiceSpec, ...]
    languages: tuple[str, ...]
    max_text_chars: int

    @classmethod
    def of(
        cls, pipeline: PipelineSpec, *, detects_turns: bool, languages: tuple[str, ...], max_text_chars: int
    ) -> "Abilities":
        """UnsupportedModalityError for a pipeline without a chat."""
        tasks = {task.name: task for task in pipeline.tasks}
        if "chat" not in tasks:
            raise UnsupportedModalityError(f"{pipeline.name} has no chat, so it has no realtime sessions")
        chat, transcription = tasks["chat"], tasks.get("transcription")
        writer = transcription.finals.get(Modality.TEXT) if transcription is not None else None
        hearer = chat.entries.get(Modality.AUDIO)
        return cls(
            hears=hearer is not None,
            speaks=Modality.AUDIO in chat.finals,
            writes=writer is not None,
            hears_by_writing=hearer is not None and hearer == writer,
            detects_turns=detects_turns,
            voices=pipeline.voices,
            languages=languages,
            max_text_chars=max_text_chars,
        )

    def check_text(self, num_chars: int, param: str) -> None:
        """InvalidRequestError for more text than a request may have: every answer would fail at it."""
        if num_chars > self.max_text_chars:
            raise InvalidRequestError(
                f"`{param}` has {num_chars} characters; at most {self.max_text_chars} are allowed "
                "(server.max_text_chars)",
                param=param,
                code="string_above_max_length",
            )


@dataclass(frozen=True)
class SessionConfig:
    """Everything a session can be set to; also, with what a `response.create` says over it, one response."""

    model: str
    instructions: str = ""
    speaks: bool = True
    voice: str = ""
    speed: float = 1.0
    input_format: WireFormat = WireFormat.PCM
    output_format: WireFormat = WireFormat.PCM
    turns: TurnDetection | None = None
    transcription: Transcription | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None

    @classmethod
    def default(cls, model: str, abilities: Abilities) -> "SessionConfig":
        """Of a new session."""
        voice = voice_named(abilities.voices, "")
        turns = ServerVad() if abilities.hears and abilities.detects_turns else None
        return cls(model, speaks=abilities.speaks, voice="" if voice is None else voice.name, turns=turns)

    def updated(self, patch: SessionPatch, abilities: Abilities) -> "SessionConfig":
        """With what the client set; raises InvalidRequestError, and then nothing is set."""
        config, heard, given = self._answering(patch, abilities, "session"), patch.input, patch.input.model_fields_set
        if heard.format is not None:
            config = replace(config, input_format=heard.format.type)
        if "transcription" in given:
            config = replace(config, transcription=_transcription(heard.transcription, abilities))
        if "turn_detection" in given:
            config = replace(config, turns=_turns(heard.turn_detection, self.turns, abilities))
        return config

    def overridden(self, patch: ResponsePatch, abilities: Abilities) -> "SessionConfig":
        """For one response."""
        return self._answering(patch, abilities, "response")

    def _answering(self, patch: SessionPatch | ResponsePatch, abilities: Abilities, where: str) -> "SessionConfig":
        output = patch.output
        if patch.tools:
            raise InvalidRequestError(f"`{where}.tools`: no tools are called here; send none", param=f"{where}.tools")
        abilities.check_text(len(patch.instructions or ""), f"{where}.instructions")
        if "audio" in (patch.output_modalities or ()) and not abilities.speaks:
            param = f"{where}.output_modalities"
            raise UnsupportedModalityError(f"`{param}`: this pipeline does not speak", param=param)
        if output.voice is not None:
            voice_named(abilities.voices, output.voice, f"{where}.audio.output.voice")
        most = patch.max_output_tokens
        return replace(
            self,
            instructions=_or(patch.instructions, self.instructions),
            speaks=self.speaks if patch.output_modalities is None else "audio" in patch.output_modalities,
            voice=_or(output.voice, self.voice),
            speed=_or(output.speed, self.speed),
            output_format=self.output_format if output.format is None else output.format.type,
            max_output_tokens=self.max_output_tokens if most is None else None if most == "inf" else most,
            temperature=self.temperature if patch.temperature is None else patch.temperature,
        )

    def as_json(self, session_id: str, expires_s: int) -> Json:
        """The session as the GA shows it."""
        return {
            "type": "realtime",
            "object": "realtime.session",
            "id": session_id,
            "model": self.model,
            "instructions": self.instructions,
            "output_modalities": self.modalities,
            "max_output_tokens": self.max_output_tokens or "inf",
            "temperature": self.temperature,
            "tools": [],
            "tool_choice": "auto",
            "tracing": None,
            "truncation": "auto",
            "prompt": None,
            "include": None,
            "expires_at": expires_s,
            "audio": {"input": self._input_json(), "output": {**self.output_json(), "speed": self.speed}},
        }

    @property
    def modalities(self) -> list[str]:
        """`output_modalities`: speech always has its transcript."""
        return ["audio"] if self.speaks else ["text"]

    @property
    def sampling(self) -> SamplingParams:
        """What was set over the runtime's defaults."""
        given = {"max_tokens": self.max_output_tokens, "temperature": self.temperature}
        return structs.replace(SamplingParams(), **{name: value for name, value in given.items() if value is not None})

    def output_json(self) -> Json:
        """`audio.output` of a response."""
        return {"format": _format_json(self.output_format), "voice": self.voice or None}

    def _input_json(self) -> Json:
        turns, transcription = self.turns, self.transcription
        return {
            "format": _format_json(self.input_format),
            "noise_reduction": None,
            "transcription": None if transcription is None else _without_empty(asdict(transcription)),
            "turn_detection": None if turns is None else turns.as_json(),
        }


_T = TypeVar("_T")


def _or(given: _T | None, other: _T) -> _T:
    return other if given is None else given


def _without_empty(fields: Json) -> Json:
    return {name: value or None for name, value in fields.items()}


def _format_json(format: WireFormat) -> Json:
    return {"type": format.value, **({"rate": format.rate} if format is WireFormat.PCM else {})}


def _transcription(patch: TranscriptionPatch | None, abilities: Abilities) -> Transcription | None:
    if patch is None:
        return None
    param = "session.audio.input.transcription"
    if not abilities.writes:
        raise UnsupportedModalityError(f"`{param}`: this pipeline writes no speech down", param=param)
    check_heard_language(abilities.languages, patch.language or "", f"{param}.language")
    return Transcription(patch.model or "", patch.language or "", patch.prompt or "")


def _turns(patch: TurnPatch | None, before: TurnDetection | None, abilities: Abilities) -> TurnDetection | None:
    if patch is None:
        return None
    if not (abilities.hears and abilities.detects_turns):
        param = "session.audio.input.turn_detection"
        why = "package silero-vad is not installed on the server" if abilities.hears else "this pipeline hears no sound"
        raise UnsupportedModalityError(f"`{param}`: {why}; set it to null", param=param)
    return patched(before, patch)
