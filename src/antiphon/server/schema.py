"""The bodies of OpenAI's speech requests, with the extras that clients send, and what all bodies share.

In: JSON objects; null means absent, unknown fields are ignored. Out: validated models with one spelling per thing.
Does not know: voices, models, text limits (the runtime judges those), or how a request is answered.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from antiphon.messages.tasks import SpeechInput
from antiphon.server.audio_encode import AudioFormat

INT64_MAX = 2**63 - 1


def _drop_nulls(data: object) -> object:
    return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


def _voice_name(value: object) -> object:
    """OpenAI takes a name or {"id": name}."""
    return value["id"] if isinstance(value, dict) and "id" in value else value


def _fold_seed(seed: int) -> int:
    """Any 64-bit seed as the 32-bit one that the engines take."""
    return seed % 2**32


def _writable(text: str) -> str:
    """JSON can spell half of a surrogate pair, which no encoding and so no stage can take."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"half a surrogate pair at {error.start} is no character; send valid Unicode") from None
    return text


Text = Annotated[str, AfterValidator(_writable)]


class VoiceReference(BaseModel):
    """A voice as OpenAI's newer clients name it."""

    id: str = Field(description="A name or alias from GET /v1/audio/voices.")


Voice = Annotated[Text, BeforeValidator(_voice_name, json_schema_input_type=str | VoiceReference)]
Seed = Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX), AfterValidator(_fold_seed)]
Speed = Annotated[float, Field(ge=0.25, le=4.0, allow_inf_nan=False)]


class OpenAiBody(BaseModel):
    """A body or part of one: unknown fields are ignored, null is the same as absent."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    _nulls = model_validator(mode="before")(_drop_nulls)


class SpokenBody(OpenAiBody):
    """How a text shall be spoken, and in which form the audio shall come."""

    voice: Voice = Field(
        default="", description="A name or alias from GET /v1/audio/voices, or {'id': name}; else the first."
    )
    instructions: str = Field(
        default="", description="Accepted for OpenAI's clients; no voice follows instructions yet."
    )
    response_format: AudioFormat = Field(default=AudioFormat.MP3, description="Container and codec of the audio.")
    speed: Speed = Field(default=1.0, description="Pace of the speech; 1 is the voice's own.")
    language: Text = Field(
        default="",
        description="Language of the text, e.g. `en`; one that the voice speaks. Default: its own.",
    )
    seed: Seed | None = Field(default=None, description="Makes the same request give the same audio.")
    sample_rate: int | None = Field(
        default=None,
        ge=8_000,
        le=48_000,
        description="Samples per second, if the format holds that rate. Default: the voice's own; pcm: 24000.",
    )

    def speech(self, text: str) -> SpeechInput:
        """`text`, to be spoken like this."""
        return SpeechInput(text, self.voice, self.speed, self.language, self.seed)


class SpeechRequest(SpokenBody):
    """POST /v1/audio/speech."""

    model: str = Field(description="A name from GET /v1/models.")
    input: Text = Field(description="The text to speak.")
    stream_format: Literal["audio", "sse"] | None = Field(
        default=None, description="`audio`: the bytes of one file as they are made. `sse`: events with base64 audio."
    )
    stream: bool = Field(default=False, description="True without `stream_format` means `stream_format: sse`.")

    @property
    def as_events(self) -> bool:
        """True for an SSE answer."""
        return self.stream_format == "sse" or (self.stream_format is None and self.stream)
