"""The events that a realtime client sends, by OpenAI's GA names; what the beta called otherwise is renamed first.

In: JSON objects; unknown fields are ignored. Out: validated models. Does not know: what is served, what is answered.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

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

    type: WireFormat = Field(
        default=WireFormat.PCM, description="pcm is 16 bits, little endian, mono; pcmu and pcma are G.711."
    )
    rate: int | None = Field(default=None, description="Samples per second: 24000 of pcm, 8000 of G.711; no other.")

    @model_validator(mode="after")
    def _has_the_only_rate(self) -> Self:
        if self.rate not in (None, self.type.rate):
            raise ValueError(f"`rate` of {self.type} is {self.type.rate}, got {self.rate}")
        return self


Format = Annotated[FormatPatch, BeforeValidator(_format)]


class TurnPatch(_Body):
    """`turn_detection`; what is absent or null stays as it is."""

    type: Literal["server_vad", "semantic_vad"] | None = Field(
        default=None, description="What ends a turn: a silence of a set length, or one that follows from `eagerness`."
    )
    eagerness: Eagerness | None = Field(
        default=None, description="Of semantic_vad: how soon a pause ends a turn; auto is medium."
    )
    threshold: float | None = Field(
        default=None, ge=0, le=1, allow_inf_nan=False, description="Of server_vad: how likely speech must be."
    )
    prefix_padding_ms: int | None = Field(
        default=None, ge=0, le=10_000, description="Of server_vad: how much before the speech is part of the turn."
    )
    silence_duration_ms: int | None = Field(
        default=None, ge=32, le=60_000, description="Of server_vad: the silence that ends a turn."
    )
    create_response: bool | None = Field(default=None, description="Whether the end of a turn asks for an answer.")
    interrupt_response: bool | None = Field(
        default=None, description="Whether the begin of a turn cancels the running answer."
    )
    idle_timeout_ms: None = Field(default=None, description="Not served: only null.")


class TranscriptionPatch(_Body):
    """`transcription`: whole, not merged."""

    model: Text | None = Field(default=None, description="Only shown again: the pipeline has one listener.")
    language: Text | None = Field(
        default=None, description="Code of the spoken language, as `en`; else it is detected."
    )
    prompt: Text | None = Field(default=None, description="Names and words that may occur.")


class InputPatch(_Body):
    """`audio.input`; its `noise_reduction` is ignored."""

    format: Format | None = Field(default=None, description="Of all audio that the client sends.")
    transcription: TranscriptionPatch | None = Field(
        default=None, description="An object: the words of each turn are told. null: they are not."
    )
    turn_detection: TurnPatch | None = Field(
        default=None, description="null: the client commits its turns and asks for answers itself."
    )


class OutputPatch(_Body):
    """`audio.output`."""

    format: Format | None = Field(default=None, description="Of all audio that the client is sent.")
    voice: Voice | None = Field(
        default=None, description="A name or alias from GET /v1/audio/voices, or {'id': name}; may change at any time."
    )
    speed: Speed | None = Field(default=None, description="Pace of the speech; 1 is the voice's own.")


class AudioPatch(_Body):
    """`audio`."""

    input: InputPatch | None = Field(default=None, description="How the client is heard.")
    output: OutputPatch | None = Field(default=None, description="How answers sound.")


class _Spoken(_Body):
    """What a session and a response both say of answers."""

    instructions: Text | None = Field(default=None, description="What the model is told before the conversation.")
    output_modalities: Annotated[list[Literal["text", "audio"]], Field(min_length=1)] | None = Field(
        default=None, description="With `audio` an answer is spoken and has a transcript; `text` alone is written."
    )
    audio: AudioPatch | None = Field(default=None, description="How the client is heard and answers sound.")
    max_output_tokens: Annotated[int, Field(ge=1, le=4096)] | Literal["inf"] | None = Field(
        default=None, description="Of one answer; `inf` is the server's own limit, 512."
    )
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = Field(
        default=None, description="0 is the likeliest answer; OpenAI's newer sessions have none."
    )
    tools: list[object] | None = Field(default=None, description="Not served: only an empty list.")
    tool_choice: Literal["auto", "none"] | None = Field(default=None, description="Ignored: no tool can be called.")
    prompt: None = Field(default=None, description="Not served: only null.")

    @property
    def output(self) -> OutputPatch:
        """`audio.output`, empty if it is not there."""
        return (self.audio and self.audio.output) or OutputPatch()


class SessionPatch(_Spoken):
    """`session` of a session.update: what is absent stays. Its `model` is ignored: a session has one."""

    type: Literal["realtime"] = Field(default="realtime", description="Always realtime.")
    by_beta_names: SkipJsonSchema[bool] = False

    @property
    def input(self) -> InputPatch:
        """`audio.input`, empty if it is not there."""
        return (self.audio and self.audio.input) or InputPatch()


class ContentPart(_Body):
    """A part of an item, by its GA or beta name."""

    type: Literal["input_text", "input_audio", "output_text", "output_audio", "text", "audio"] = Field(
        description="input_* of a user (a system only writes), output_* of an assistant; the beta has text and audio."
    )
    text: Text | None = Field(default=None, description="Of a written part.")
    audio: str | None = Field(default=None, description="Of input_audio: base64 in the session's input format.")
    transcript: Text | None = Field(default=None, description="The words of a spoken part, if they are known.")


class ItemBody(_Body):
    """An item of a conversation."""

    id: Id | None = Field(default=None, description="The client's own name of it; else the server makes one.")
    type: Literal["message"] = Field(default="message", description="Always message.")
    role: Literal["user", "assistant", "system"] = Field(description="Who says it.")
    content: Annotated[list[ContentPart], Field(min_length=1, max_length=64)] = Field(description="What is said.")


class ItemReference(_Body):
    """An item that is in the conversation already."""

    type: Literal["item_reference"] = Field(description="Always item_reference.")
    id: Id = Field(description="Of the item.")


_AnyItem = Annotated[ItemBody | ItemReference, Field(discriminator="type")]


class ResponsePatch(_Spoken):
    """`response` of a response.create: over what the session is set to."""

    conversation: Literal["auto", "none"] | None = Field(
        default=None, description="none: the answer does not become part of the conversation."
    )
    input: Annotated[list[_AnyItem], Field(max_length=64)] | None = Field(
        default=None, description="What the model is told instead of the conversation."
    )
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = Field(
        default=None, description="Comes back in every event that shows the response."
    )


class SessionUpdate(ClientEvent):
    """session.update."""

    session: Annotated[SessionPatch, BeforeValidator(_from_beta)] = Field(description="What is to be changed.")


class AppendAudio(ClientEvent):
    """input_audio_buffer.append."""

    audio: str = Field(description="Base64 in the session's input format, cut anywhere.")


class CommitAudio(ClientEvent):
    """input_audio_buffer.commit."""


class ClearAudio(ClientEvent):
    """input_audio_buffer.clear."""


class CreateItem(ClientEvent):
    """conversation.item.create."""

    item: ItemBody = Field(description="The item.")
    previous_item_id: Id | None = Field(
        default=None, description="The item that it stands behind; `root`: in front of all; else at the end."
    )


class RetrieveItem(ClientEvent):
    """conversation.item.retrieve."""

    item_id: Id = Field(description="Of the item.")


class TruncateItem(ClientEvent):
    """conversation.item.truncate."""

    item_id: Id = Field(description="Of an assistant's item that is not being spoken any more.")
    content_index: int = Field(default=0, ge=0, description="Which of its parts: a spoken one.")
    audio_end_ms: int = Field(ge=0, description="How much of its sound was played; not more than there is.")


class DeleteItem(ClientEvent):
    """conversation.item.delete."""

    item_id: Id = Field(description="Of the item.")


class CreateResponse(ClientEvent):
    """response.create."""

    response: Annotated[ResponsePatch | None, BeforeValidator(_from_beta)] = Field(
        default=None, description="What this response has otherwise than the session."
    )


class CancelResponse(ClientEvent):
    """response.cancel; of the running response, if it names none."""

    response_id: Id | None = Field(default=None, description="Of the running response; else it is not cancelled.")


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
