"""A chat request's conversation and sampling as the runtime's ChatInput.

In: a validated ChatRequest. Out: a ChatInput with decoded audio, or an error that names the message and part.
Does not know: HTTP, prompts, tokens.
"""

import base64
import binascii

import msgspec
import numpy as np

from antiphon.errors import InvalidRequestError, RequestError, UnsupportedModalityError
from antiphon.messages.params import SamplingParams
from antiphon.messages.tasks import ChatInput, ChatMessage
from antiphon.server.audio_decode import decode_audio
from antiphon.server.schema import ChatRequest, ContentPart, RequestMessage


def chat_input(body: ChatRequest, *, max_audio_s: float) -> ChatInput:
    """The conversation as a value. CPU work if there is audio in it: call it off the event loop then."""
    return ChatInput(
        messages=tuple(
            _message(message, f"messages[{index}]", max_audio_s) for index, message in enumerate(body.messages)
        ),
        sampling=_sampling(body),
        audio_out=body.audio_out,
        voice=body.audio.voice,
        speed=body.audio.speed,
    )


def has_audio(body: ChatRequest) -> bool:
    """True if some message has a spoken part."""
    return any(part.type == "input_audio" for message in body.messages for part in message.content)


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
    }
    named = {name: value for name, value in given.items() if value is not None}
    return msgspec.structs.replace(SamplingParams(), stop=tuple(body.stop), ignore_eos=body.ignore_eos, **named)


def _message(message: RequestMessage, where: str, max_audio_s: float) -> ChatMessage:
    if message.audio is not None and not message.content:
        raise InvalidRequestError(
            f"`{where}.audio`: this server keeps no audio of earlier answers; send its transcript as `content`",
            param=f"{where}.audio",
        )
    if message.role == "user" and not message.content:
        raise InvalidRequestError(f"`{where}.content` is required", param=f"{where}.content", code="missing_field")
    texts, sounds = [], []
    for index, part in enumerate(message.content):
        place = f"{where}.content[{index}]"
        match part.type:
            case "text":
                texts.append(part.text)
            case "input_audio":
                sounds.append(_samples(part, f"{place}.input_audio", max_audio_s))
            case "image_url":
                raise UnsupportedModalityError(f"`{place}`: this pipeline does not see pictures", param=place)
    role = "system" if message.role == "developer" else message.role
    return ChatMessage(role, "\n".join(texts), np.concatenate(sounds) if sounds else None)


def _samples(part: ContentPart, where: str, max_audio_s: float) -> np.ndarray:
    """float32 mono 16 kHz [samples]."""
    if part.input_audio is None:
        raise InvalidRequestError(f"`{where}` is required", param=where, code="missing_field")
    param = f"{where}.data"
    try:
        data = base64.b64decode(part.input_audio.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequestError(f"`{param}` is not base64: {error}", param=param) from error
    try:
        return decode_audio(data, max_duration_s=max_audio_s)
    except RequestError as error:
        raise type(error)(f"`{param}`: {error.message}", param=param, code=error.code) from error
