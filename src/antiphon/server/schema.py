"""The bodies of OpenAI's audio and chat requests, with the extras that clients send in practice.

In: JSON objects; null means absent, unknown fields are ignored. Out: validated models with one spelling per thing.
Does not know: voices, models, text limits (the runtime judges those), or how a request is answered.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from antiphon.server.audio_encode import AudioFormat

_INT64_MAX = 2**63 - 1


def _drop_nulls(data: object) -> object:
    return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


def _voice_name(value: object) -> object:
    """OpenAI takes a name or {"id": name}."""
    return value["id"] if isinstance(value, dict) and "id" in value else value


def _as_parts(value: object) -> object:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _format_name(value: object) -> object:
    """The chat API says pcm16 where the speech API says pcm."""
    return "pcm" if value == "pcm16" else value


def _fold_seed(seed: int) -> int:
    """Any 64-bit seed as the 32-bit one that the engines take."""
    return seed % 2**32


def _writable(text: str) -> str:
    """JSON can spell half of a surrogate pair, which no encoding and so no stage can take."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the text has a lone surrogate at character {error.start}, which is no character") from None
    return text


Text = Annotated[str, AfterValidator(_writable)]


class VoiceReference(BaseModel):
    """A voice as OpenAI's newer clients name it."""

    id: str = Field(description="A name or alias from GET /v1/audio/voices.")


Voice = Annotated[Text, BeforeValidator(_voice_name, json_schema_input_type=str | VoiceReference)]
Seed = Annotated[int, Field(ge=-_INT64_MAX - 1, le=_INT64_MAX), AfterValidator(_fold_seed)]
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


class InputAudio(OpenAiBody):
    """A spoken part of a message."""

    data: str = Field(description="Base64 of an audio file, or a `data:` URL with it.")
    format: str = Field(default="wav", description="Its format; the file's own header decides.")


class DataUrl(OpenAiBody):
    """A picture or video."""

    url: str = Field(description="A `data:` URL with the file in base64; this server fetches nothing.")


class ContentPart(OpenAiBody):
    """One part of a message: text, sound, a picture or a video."""

    type: Literal["text", "input_audio", "image_url", "video_url"] = Field(
        description="Which of the other fields is set."
    )
    text: Text = Field(default="", description="The text of a `text` part.")
    input_audio: InputAudio | None = Field(default=None, description="The audio of an `input_audio` part.")
    image_url: DataUrl | None = Field(default=None, description="The png, jpeg or webp file of an `image_url` part.")
    video_url: DataUrl | None = Field(
        default=None, description="Extra: the mp4, mov, webm or mkv file of a `video_url` part."
    )


class AudioReference(OpenAiBody):
    """An earlier answer's audio."""

    id: str = Field(
        default="", description="Its id; this server keeps no audio, so its transcript must come as `content`."
    )


class RequestMessage(OpenAiBody):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(
        description="Who speaks; `developer` means `system`."
    )
    content: Annotated[
        list[ContentPart], BeforeValidator(_as_parts, json_schema_input_type=str | list[ContentPart])
    ] = Field(default_factory=list, description="Text, or a list of parts.")
    audio: AudioReference | None = Field(
        default=None, description="An earlier spoken answer; send its transcript instead."
    )


class AudioParameters(OpenAiBody):
    """How the answer shall sound."""

    voice: Voice = Field(
        default="", description="A name or alias from GET /v1/audio/voices, or {'id': name}; else the first."
    )
    format: Annotated[AudioFormat, BeforeValidator(_format_name)] | None = Field(
        default=None, description="wav, mp3, flac, opus, aac or pcm16. Default: pcm16 for a stream, else wav."
    )
    speed: Speed = Field(default=1.0, description="Pace of the speech; 1 is the voice's own.")


class StreamOptions(OpenAiBody):
    """What a stream says besides its deltas."""

    include_usage: bool = Field(default=False, description="True: one more chunk, without choices, tells the usage.")


class MediaOptions(OpenAiBody):
    """How a model takes its media."""

    use_audio_in_video: bool = Field(default=False, description="True: videos are heard too, not only seen.")


class ChatRequest(OpenAiBody):
    """POST /v1/chat/completions."""

    model: str = Field(description="A name from GET /v1/models.")
    messages: list[RequestMessage] = Field(min_length=1, description="The conversation so far.")
    modalities: list[Literal["text", "audio"]] = Field(
        default=["text"], min_length=1, description="`audio` asks for speech beside the text."
    )
    audio: AudioParameters = Field(
        default=AudioParameters(), description="Voice and format; read if `modalities` has `audio`."
    )
    stream: bool = Field(default=False, description="True: the answer as events while it is made.")
    stream_options: StreamOptions = Field(default=StreamOptions(), description="Only for streams.")
    max_tokens: int | None = Field(default=None, ge=1, le=_INT64_MAX, description="Most new tokens (old name).")
    max_completion_tokens: int | None = Field(default=None, ge=1, le=_INT64_MAX, description="Most new tokens.")
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False, description="0 is greedy.")
    top_p: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False, description="Nucleus sampling.")
    top_k: int | None = Field(default=None, ge=0, le=2**31 - 1, description="Extra: tokens to choose from; 0 is all.")
    min_p: float | None = Field(
        default=None, ge=0, le=1, allow_inf_nan=False, description="Extra: least share of the best."
    )
    repetition_penalty: float | None = Field(
        default=None, gt=0, le=10, allow_inf_nan=False, description="Extra: 1 is none."
    )
    stop: Annotated[
        list[Annotated[Text, Field(min_length=1)]],
        BeforeValidator(_as_list, json_schema_input_type=str | list[str]),
        Field(max_length=4),
    ] = Field(default_factory=list, description="Up to four texts that end the answer.")
    seed: Seed | None = Field(default=None, description="Makes the same request give the same answer.")
    mm_processor_kwargs: MediaOptions = Field(default=MediaOptions(), description="Extra: see its fields.")
    n: Literal[1] = Field(default=1, description="Number of answers; only 1 is served.")
    ignore_eos: bool = Field(default=False, description="Extra: go on to `max_tokens`, as load generators want.")

    @property
    def audio_out(self) -> bool:
        """True if the answer shall be spoken too."""
        return "audio" in self.modalities

    @property
    def audio_format(self) -> AudioFormat:
        """The format asked for, or the one that is usual for this kind of answer."""
        return self.audio.format or (AudioFormat.PCM if self.stream else AudioFormat.WAV)
