"""The body of OpenAI's chat requests, with the extras that clients send in practice.

In: JSON objects; null means absent, unknown fields are ignored. Out: validated models with one spelling per thing.
Does not know: what the model behind it can do (the runtime judges that), or how a request is answered.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from antiphon.server.audio_encode import AudioFormat
from antiphon.server.schema import INT64_MAX, OpenAiBody, Seed, Speed, Text, Voice
from antiphon.server.tool_schema import RequestToolCall, ToolChoice, ToolDefinition

MAX_CHOICES = 8
"""Answers to one request: each is a request of its own in every stage."""


def _as_parts(value: object) -> object:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _format_name(value: object) -> object:
    """The chat API says pcm16 where the speech API says pcm."""
    return "pcm" if value == "pcm16" else value


def _not_served(value: object) -> object:
    """A value that asks for nothing is taken."""
    if value:
        raise ValueError("this server cannot do what it asks for; leave it out")
    return value


NotServed = Annotated[object, BeforeValidator(_not_served), Field(description="Not served: a value is a 400.")]


Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]


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
    tool_calls: list[RequestToolCall] = Field(
        default_factory=list, max_length=128, description="The calls that an `assistant` message asked for."
    )
    tool_call_id: Text = Field(default="", description="Which of them a `tool` message answers.")


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


class JsonSchema(OpenAiBody):
    """The form of an answer in JSON."""

    json_schema: dict[str, object] | None = Field(
        default=None, alias="schema", description="The JSON Schema that the answer fits; see docs/http_api.md."
    )


class ResponseFormat(OpenAiBody):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"] = Field(description="Any text, any JSON object, or a schema's.")
    json_schema: JsonSchema | None = Field(default=None, description="For `json_schema`.")


class UnservedOptions(OpenAiBody):
    """What would change the answer and is not done here, so that nobody believes it was."""

    functions: NotServed = None
    function_call: NotServed = None
    web_search_options: NotServed = None
    reasoning_effort: NotServed = None
    verbosity: NotServed = None
    guided_json: NotServed = None
    guided_regex: NotServed = None
    guided_choice: NotServed = None
    guided_grammar: NotServed = None
    structured_outputs: NotServed = None
    use_beam_search: NotServed = None
    min_tokens: NotServed = None
    stop_token_ids: NotServed = None
    bad_words: NotServed = None
    prompt_logprobs: NotServed = None
    continue_final_message: NotServed = None
    chat_template: NotServed = None
    chat_template_kwargs: NotServed = None


class ChatRequest(UnservedOptions):
    """POST /v1/chat/completions."""

    model: str = Field(description="A name from GET /v1/models.")
    messages: list[RequestMessage] = Field(min_length=1, max_length=2048, description="The conversation so far.")
    modalities: list[Literal["text", "audio"]] = Field(
        default=["text"], min_length=1, description="`audio` asks for speech beside the text."
    )
    audio: AudioParameters = Field(
        default=AudioParameters(), description="Voice and format; read if `modalities` has `audio`."
    )
    stream: bool = Field(default=False, description="True: the answer as events while it is made.")
    stream_options: StreamOptions = Field(default=StreamOptions(), description="Only for streams.")
    max_tokens: int | None = Field(default=None, ge=1, le=INT64_MAX, description="Most new tokens (old name).")
    max_completion_tokens: int | None = Field(default=None, ge=1, le=INT64_MAX, description="Most new tokens.")
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
    n: int = Field(default=1, ge=1, le=MAX_CHOICES, description="Number of answers, with seeds `seed`, `seed` + 1, ...")
    presence_penalty: Penalty = Field(default=0.0, description="Off the logits of tokens that have come.")
    frequency_penalty: Penalty = Field(default=0.0, description="The same, for each time that they have.")
    logit_bias: dict[TokenId, Bias] = Field(
        default_factory=dict, max_length=300, description="Token id -> what is added to its logit."
    )
    logprobs: bool = Field(default=False, description="True: also tell the tokens' log probabilities.")
    top_logprobs: int | None = Field(
        default=None, ge=0, le=20, description="With `logprobs`: how many of the likeliest tokens to tell each time."
    )
    response_format: ResponseFormat | None = Field(default=None, description="Any text, or JSON.")
    tools: list[ToolDefinition] = Field(
        default_factory=list, max_length=128, description="What the model may call, if its chat template knows tools."
    )
    tool_choice: ToolChoice = Field(
        default="auto", description="`none`: the model does not hear of the tools. It cannot be made to call one."
    )
    ignore_eos: bool = Field(default=False, description="Extra: go on to `max_tokens`, as load generators want.")

    @property
    def audio_out(self) -> bool:
        """True if the answer shall be spoken too."""
        return "audio" in self.modalities

    @property
    def audio_format(self) -> AudioFormat:
        """The format asked for, or the one that is usual for this kind of answer."""
        return self.audio.format or (AudioFormat.PCM if self.stream else AudioFormat.WAV)
