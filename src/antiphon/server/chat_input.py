"""A chat request's conversation and sampling as the runtime's ChatInput.

In: a validated ChatRequest. Out: a ChatInput with decoded media, or an error that names the message and part.
Does not know: HTTP, prompts, tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar, assert_never

import msgspec

from antiphon.config.deploy import ServerDeploy
from antiphon.config.pipeline import Modality
from antiphon.errors import InvalidRequestError, RequestError, UnsupportedModalityError
from antiphon.messages.params import SamplingParams
from antiphon.messages.tasks import ChatInput, ChatMessage, ChatPart, Picture, Sound, ToolCall, Video
from antiphon.server.audio_decode import decode_audio
from antiphon.server.chat_schema import ChatRequest, ContentPart, DataUrl, InputAudio, RequestMessage
from antiphon.server.data_url import base64_bytes, data_url_bytes, is_data_url
from antiphon.server.json_schema import check_schema
from antiphon.server.media_decode import VideoLimits, decode_picture, decode_video

_Field = TypeVar("_Field", InputAudio, DataUrl)
_MODALITY = {"input_audio": Modality.AUDIO, "image_url": Modality.IMAGE, "video_url": Modality.VIDEO}
_NOT_TAKEN = {
    Modality.AUDIO: "this pipeline does not hear sound; send text",
    Modality.IMAGE: "this pipeline does not see pictures; send text",
    Modality.VIDEO: "this pipeline does not see videos; send text",
}


def chat_input(body: ChatRequest, settings: ServerDeploy, taken: frozenset[Modality]) -> ChatInput:
    """The conversation as a value; `taken` is what the pipeline's chat can take in.

    CPU work if there are media in it: call it off the event loop then.
    """
    _check(body, taken)
    reader = _PartReader(settings, use_audio_in_video=body.mm_processor_kwargs.use_audio_in_video)
    return ChatInput(
        messages=tuple(_message(message, f"messages[{index}]", reader) for index, message in enumerate(body.messages)),
        sampling=_sampling(body),
        audio_out=body.audio_out,
        voice=body.audio.voice,
        speed=body.audio.speed,
        use_audio_in_video=body.mm_processor_kwargs.use_audio_in_video,
        json_schema=_json_schema(body),
        tools=() if body.tool_choice == "none" else tuple(tool.document() for tool in body.tools),
    )


def has_media(body: ChatRequest) -> bool:
    """True if some message has more than text."""
    return any(part.type in _MODALITY for message in body.messages for part in message.content)


def _check(body: ChatRequest, taken: frozenset[Modality]) -> None:
    """What can be refused before anything is decoded."""
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("`top_logprobs` needs `logprobs: true`", param="top_logprobs")
    for index, message in enumerate(body.messages):
        where = f"messages[{index}]"
        if message.audio is not None and not message.content:
            raise InvalidRequestError(
                f"`{where}.audio`: this server keeps no audio of earlier answers; send its transcript as `content`",
                param=f"{where}.audio",
            )
        if message.role in ("user", "tool") and not message.content:
            raise InvalidRequestError(f"`{where}.content` is required", param=f"{where}.content", code="missing_field")
        for number, part in enumerate(message.content):
            modality = _MODALITY.get(part.type, Modality.TEXT)
            if modality not in taken and modality is not Modality.TEXT:
                place = f"{where}.content[{number}]"
                raise UnsupportedModalityError(f"`{place}`: {_NOT_TAKEN[modality]}", param=place)


def _sampling(body: ChatRequest) -> SamplingParams:
    """What the client gave over the runtime's defaults."""
    given = {
        "max_tokens": body.max_completion_tokens or body.max_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "repetition_penalty": body.repetition_penalty,
        "seed": body.seed,
        "logprobs": (body.top_logprobs or 0) if body.logprobs else None,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "logit_bias": tuple(body.logit_bias.items()),
    }
    named = {name: value for name, value in given.items() if value is not None}
    return msgspec.structs.replace(SamplingParams(), stop=tuple(body.stop), ignore_eos=body.ignore_eos, **named)


def _json_schema(body: ChatRequest) -> str:
    """The schema that the answer shall fit as JSON, or ""."""
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return ""
    if wanted.type == "json_object":
        return '{"type":"object"}'
    param = "response_format.json_schema.schema"
    schema = None if wanted.json_schema is None else wanted.json_schema.json_schema
    if schema is None:
        raise InvalidRequestError(f"`{param}` is required", param=param, code="missing_field")
    check_schema(schema, param)
    return msgspec.json.encode(schema).decode()


def _message(message: RequestMessage, where: str, reader: "_PartReader") -> ChatMessage:
    parts = tuple(reader.read(part, f"{where}.content[{index}]") for index, part in enumerate(message.content))
    calls = tuple(ToolCall(call.id, call.function.name, call.function.arguments) for call in message.tool_calls)
    role = "system" if message.role == "developer" else message.role
    return ChatMessage(role, parts, tool_calls=calls, tool_call_id=message.tool_call_id)


class _PartReader:
    """Owns what is left of the request's pixels and frames."""

    def __init__(self, settings: ServerDeploy, *, use_audio_in_video: bool) -> None:
        self._settings = settings
        self._use_audio_in_video = use_audio_in_video
        self._pixels_left = settings.max_pixels
        self._frames_left = settings.max_video_frames

    def read(self, part: ContentPart, place: str) -> ChatPart:
        """The part, decoded; errors name its place in the body."""
        match part.type:
            case "text":
                return part.text
            case "input_audio":
                sound = _present(part.input_audio, f"{place}.input_audio")
                with _named(f"{place}.input_audio.data"):
                    return self._sound(sound.data)
            case "image_url":
                picture = _present(part.image_url, f"{place}.image_url")
                with _named(f"{place}.image_url.url"):
                    return self._picture(picture.url)
            case "video_url":
                video = _present(part.video_url, f"{place}.video_url")
                with _named(f"{place}.video_url.url"):
                    return self._video(video.url)
            case _:
                assert_never(part.type)

    def _sound(self, text: str) -> Sound:
        data = data_url_bytes(text) if is_data_url(text) else base64_bytes(text)
        return Sound(decode_audio(data, max_duration_s=self._settings.max_audio_s))

    def _picture(self, url: str) -> Picture:
        pixels = decode_picture(data_url_bytes(url), max_pixels=self._pixels_left)
        self._pixels_left -= pixels.size // 3
        return Picture(pixels)

    def _video(self, url: str) -> Video:
        settings = self._settings
        limits = VideoLimits(
            settings.video_frames_per_s,
            self._frames_left,
            self._pixels_left,
            max_frame_pixels=max(1, settings.max_pixels // settings.max_video_frames),
        )
        max_sound_s = settings.max_audio_s if self._use_audio_in_video else None
        video = decode_video(data_url_bytes(url), limits, max_sound_s=max_sound_s)
        self._frames_left -= len(video.frames)
        self._pixels_left -= video.frames.size // 3
        return video


def _present(field: _Field | None, where: str) -> _Field:
    if field is None:
        raise InvalidRequestError(f"`{where}` is required", param=where, code="missing_field")
    return field


@contextmanager
def _named(param: str) -> Iterator[None]:
    """Errors inside name the field that they are about."""
    try:
        yield
    except RequestError as error:
        raise type(error)(f"`{param}`: {error.message}", param=param, code=error.code) from error
