"""The events that a realtime client sends, by OpenAI's GA names; what the beta called otherwise is renamed first.

In: JSON objects; unknown fields are ignored. Out: validated models. Does not know: what is served, what is answered.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from antiphon.server.realtime.wire_audio import WireFormat
from antiphon.server.schema import Speed, Text, Voice
from antiphon.server.websocket import ClientEvent

_MAX_ID_CHARS = 64
_BETA_FORMATS = {"pcm16": WireFormat.PCM, "g711_ulaw": WireFormat.PCMU, "g711_alaw": WireFormat.PCMA}
_BETA_PLACES = {
    "modalities": ("output_modalities",),
    "max_response_output_tokens": ("max_output_tokens",),
    "voice": ("audio", "output", "voice"),
    "speed": ("audio", "output", "speed"),
    "output_audio_format": ("audio", "output", "format"),
    "input_audio_format": ("audio", "input", "format"),
    "input_audio_transcription": ("audio", "input", "transcription"),
    "input_audio_noise_reduction": ("audio", "input", "noise_reduction"),
    "turn_detection": ("audio", "input", "turn_detection"),
}
"""A field of a beta session or response -> where the GA one has it."""

Eagerness = Literal["low", "medium", "high", "auto"]
Id = Annotated[str, Field(min_length=1, max_length=_MAX_ID_CHARS)]


def _from_beta(fields: object) -> object:
    """The same with its fields where the GA has them; and whether it is the beta's: its sessions have no `type`."""
    if not isinstance(fields, dict) or _BETA_PLACES.keys().isdisjoint(fields):
        return fields
    moved: dict[str, object] = {name: value for name, value in fields.items() if name not in _BETA_PLACES}
    for name, path in _BETA_PLACES.items():
        if name in fields:
            _put(moved, path, fields[name])
    return {**moved, "by_beta_names": "type" not in fields}


def _put(fields: dict[str, object], path: Sequence[str], value: object) -> None:
    first, *rest = path
    if not rest:
        fields.setdefault(first, value)
        return
    given = fields.get(first)
    inner: dict[str, object] = dict(given) if isinstance(given, dict) else {}
    fields[first] = inner
    _put(inner, rest, value)


def _format(value: object) -> object:
    """The beta says `pcm16` where the GA says {"type": "audio/pcm", "rate": 24000}."""
    return {"type": _BETA_FORMATS.get(value, value)} if isinstance(value, str) else value


class _Body(BaseModel):
    """Part of an event. null is a value: of `turn_detection` it means off."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class FormatPatch(_Body):
    """An audio format."""

    type: WireFormat = WireFormat.PCM
    rate: int | None = None

    @model_validator(mode="after")
    def _has_the_only_rate(self) -> Self:
        if self.rate not in (None, self.type.rate):
            raise ValueError(f"`rate` of {self.type} is {self.type.rate}, got {self.rate}")
        return self


Format = Annotated[FormatPatch, BeforeValidator(_format)]


class TurnPatch(_Body):
    """`turn_detection`; what is absent or null stays as it is."""

    type: Literal["server_vad", "semantic_vad"] | None = None
    eagerness: Eagerness | None = None
    threshold: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    prefix_padding_ms: Annotated[int, Field(ge=0, le=10_000)] | None = None
    silence_duration_ms: Annotated[int, Field(ge=32, le=60_000)] | None = None
    create_response: bool | None = None
    interrupt_response: bool | None = None
    idle_timeout_ms: None = None


class TranscriptionPatch(_Body):
    """`transcription`: whole, not merged."""

    model: Text | None = None
    language: Text | None = None
    prompt: Text | None = None


class InputPatch(_Body):
    """`audio.input`; its `noise_reduction` is ignored."""

    format: Format | None = None
    transcription: TranscriptionPatch | None = None
    turn_detection: TurnPatch | None = None


class OutputPatch(_Body):
    """`audio.output`."""

    format: Format | None = None
    voice: Voice | None = None
    speed: Speed | None = None


class AudioPatch(_Body):
    """`audio`."""

    input: InputPatch | None = None
    output: OutputPatch | None = None


class _Spoken(_Body):
    """What a session and a response both say of answers."""

    instructions: Text | None = None
    output_modalities: Annotated[list[Literal["text", "audio"]], Field(min_length=1)] | None = None
    audio: AudioPatch | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=4096)] | Literal["inf"] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    tools: list[object] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    prompt: None = None

    @property
    def output(self) -> OutputPatch:
        """`audio.output`, empty if it is not there."""
        return (self.audio and self.audio.output) or OutputPatch()


class SessionPatch(_Spoken):
    """`session` of a session.update: what is absent stays. Its `model` is ignored: a session has one."""

    type: Literal["realtime"] = "realtime"
    by_beta_names: bool = False

    @property
    def input(self) -> InputPatch:
        """`audio.input`, empty if it is not there."""
        return (self.audio and self.audio.input) or InputPatch()


class ContentPart(_Body):
    """A part of an item, by its GA or beta name."""

    type: Literal["input_text", "input_audio", "output_text", "output_audio", "text", "audio"]
    text: Text | None = None
    audio: str | None = None
    transcript: Text | None = None


class ItemBody(_Body):
    """An item of a conversation."""

    id: Id | None = None
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system"]
    content: Annotated[list[ContentPart], Field(min_length=1, max_length=64)]


class ItemReference(_Body):
    """An item that is in the conversation already."""

    type: Literal["item_reference"]
    id: Id


_AnyItem = Annotated[ItemBody | ItemReference, Field(discriminator="type")]


class ResponsePatch(_Spoken):
    """`response` of a response.create: over what the session is set to."""

    conversation: Literal["auto", "none"] | None = None
    input: Annotated[list[_AnyItem], Field(max_length=64)] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None


class SessionUpdate(ClientEvent):
    """session.update."""

    session: Annotated[SessionPatch, BeforeValidator(_from_beta)]


class AppendAudio(ClientEvent):
    """input_audio_buffer.append; audio: base64."""

    audio: str


class CommitAudio(ClientEvent):
    """input_audio_buffer.commit."""


class ClearAudio(ClientEvent):
    """input_audio_buffer.clear."""


class CreateItem(ClientEvent):
    """conversation.item.create."""

    item: ItemBody
    previous_item_id: Id | None = None


class RetrieveItem(ClientEvent):
    """conversation.item.retrieve."""

    item_id: Id


class TruncateItem(ClientEvent):
    """conversation.item.truncate."""

    item_id: Id
    content_index: Annotated[int, Field(ge=0)] = 0
    audio_end_ms: Annotated[int, Field(ge=0)]


class DeleteItem(ClientEvent):
    """conversation.item.delete."""

    item_id: Id


class CreateResponse(ClientEvent):
    """response.create."""

    response: Annotated[ResponsePatch | None, BeforeValidator(_from_beta)] = None


class CancelResponse(ClientEvent):
    """response.cancel; of the running response, if it names none."""

    response_id: Id | None = None


EVENTS: dict[str, type[ClientEvent]] = {
    "session.update": SessionUpdate,
    "input_audio_buffer.append": AppendAudio,
    "input_audio_buffer.commit": CommitAudio,
    "input_audio_buffer.clear": ClearAudio,
    "conversation.item.create": CreateItem,
    "conversation.item.retrieve": RetrieveItem,
    "conversation.item.truncate": TruncateItem,
    "conversation.item.delete": DeleteItem,
    "response.create": CreateResponse,
    "response.cancel": CancelResponse,
}
