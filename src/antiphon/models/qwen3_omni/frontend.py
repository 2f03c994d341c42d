"""The frontend of `qwen3-omni`: checks a conversation and packs it for the thinker.

In: ChatInput. Out: EntryPayload, or InvalidRequestError naming the parameter.
Does not know: processes, checkpoints (the thinker's process tokenizes), speakers (they are in the checkpoint).
"""

import math
from typing import assert_never

import numpy as np

from antiphon.client.frontend import FrontendLimits
from antiphon.config.pipeline import Modality
from antiphon.errors import InvalidRequestError, RequestTooLargeError, UnsupportedModalityError
from antiphon.messages.params import RequestParams, SpeechParams
from antiphon.messages.payload import EntryPayload
from antiphon.messages.tasks import ChatInput, ChatMessage, ChatPart, Picture, Sound, TaskInput, Video
from antiphon.models.qwen3_omni import prompts

AUDIO_RATE = 16_000
_MIN_AUDIO_SAMPLES = AUDIO_RATE // 50
_MODALITIES = {str: Modality.TEXT, Sound: Modality.AUDIO, Picture: Modality.IMAGE, Video: Modality.VIDEO}
_ROLES = ("system", "user", "assistant")


class OmniFrontend:
    """Knows the operator's limits."""

    def __init__(self, limits: FrontendLimits) -> None:
        self._limits = limits

    def prepare(self, task_input: TaskInput) -> EntryPayload:
        """Check and convert; see the module docstring."""
        if not isinstance(task_input, ChatInput):
            raise UnsupportedModalityError(
                "qwen3-omni has one task, chat: send a conversation (with audio_out for speech)", param="model"
            )
        chat = task_input
        self._check(chat)
        turns = tuple(
            prompts.Turn(
                message.role,
                tuple(_packed(part, use_audio_in_video=chat.use_audio_in_video) for part in message.parts),
            )
            for message in chat.messages
        )
        return payload(prompts.encode(prompts.Conversation(turns)), chat)

    def _check(self, chat: ChatInput) -> None:
        if not chat.messages or chat.messages[-1].role == "assistant":
            raise InvalidRequestError("the conversation must end with a message to answer", param="messages")
        if chat.speed != 1.0:
            raise InvalidRequestError("this model speaks at its own pace; leave speed at 1", param="speed")
        num_chars = sum(len(message.text) for message in chat.messages)
        if num_chars > self._limits.max_text_chars:
            raise InvalidRequestError(
                f"messages have {num_chars} characters; at most {self._limits.max_text_chars} are allowed "
                "(server.max_text_chars)",
                param="messages",
                code="string_above_max_length",
            )
        for message in chat.messages:
            self._check_message(message)
        self._check_media(chat)

    def _check_message(self, message: ChatMessage) -> None:
        if message.role not in _ROLES:
            raise InvalidRequestError(f"role {message.role!r} is none of {', '.join(_ROLES)}", param="messages")
        for part in message.parts:
            match part:
                case str():
                    _check_text(part)
                case Sound():
                    self._check_sound(part.samples)
                case Picture():
                    _check_pixels(part.pixels, "a picture", num_axes=3)
                case Video():
                    _check_pixels(part.frames, "a video", num_axes=4)
                    if not 0 < part.frames_per_s < math.inf:
                        raise InvalidRequestError(
                            f"a video's frames_per_s is {part.frames_per_s}; it must be above 0", param="messages"
                        )
                    if part.sound is not None:
                        self._check_sound(part.sound)
                case _:
                    assert_never(part)

    def _check_sound(self, samples: np.ndarray) -> None:
        if samples.ndim != 1 or len(samples) < _MIN_AUDIO_SAMPLES:
            raise InvalidRequestError(
                "the audio must be mono and at least 20 ms", param="messages", code="invalid_audio"
            )
        if len(samples) > self._limits.max_audio_s * AUDIO_RATE:
            raise RequestTooLargeError(
                f"the audio lasts {len(samples) / AUDIO_RATE:.0f} s; at most {self._limits.max_audio_s:g} s are "
                "allowed (server.max_audio_s)",
                param="messages",
            )

    def _check_media(self, chat: ChatInput) -> None:
        parts = [part for message in chat.messages for part in message.parts]
        videos = [part for part in parts if isinstance(part, Video)]
        frames = [video.frames for video in videos]
        num_frames = sum(map(len, frames))
        if num_frames > self._limits.max_video_frames:
            raise RequestTooLargeError(
                f"the videos have {num_frames} frames; at most {self._limits.max_video_frames} are allowed "
                "(server.max_video_frames)",
                param="messages",
            )
        pictures = [part.pixels for part in parts if isinstance(part, Picture)]
        num_pixels = sum(array.size // 3 for array in (*pictures, *frames))
        if num_pixels > self._limits.max_pixels:
            raise RequestTooLargeError(
                f"the pictures and videos have {num_pixels} pixels; at most {self._limits.max_pixels} are allowed "
                "(server.max_pixels)",
                param="messages",
            )
        if chat.use_audio_in_video and len({video.sound is None for video in videos}) > 1:
            raise InvalidRequestError(
                "use_audio_in_video: some videos have a sound and some have none; send them in requests of their own",
                param="messages",
            )


def payload(document: np.ndarray, chat: ChatInput) -> EntryPayload:
    """The entry payload of a packed prompt; `chat` says how to sample, and whether and by whom it is spoken."""
    parts = [part for message in chat.messages for part in message.parts]
    inputs = {Modality.TEXT} | {_MODALITIES[type(part)] for part in parts}
    outputs = {Modality.TEXT, Modality.AUDIO} if chat.audio_out else {Modality.TEXT}
    speech = SpeechParams(voice=chat.voice, seed=chat.sampling.seed) if chat.audio_out else SpeechParams()
    params = RequestParams(sampling=chat.sampling, speech=speech)
    return EntryPayload("chat", frozenset(inputs), frozenset(outputs), params, {prompts.KEY: document}, {})


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError("a message is not valid Unicode", param="messages") from error


def _check_pixels(pixels: np.ndarray, what: str, *, num_axes: int) -> None:
    if pixels.ndim != num_axes or pixels.shape[-1] != 3 or pixels.dtype != np.uint8 or not pixels.size:
        shape = "[height, width, 3]" if num_axes == 3 else "[frames, height, width, 3]"
        got = "x".join(map(str, pixels.shape))
        raise InvalidRequestError(f"{what} is uint8 {shape}, and this is {pixels.dtype} {got}", param="messages")


def _packed(part: ChatPart, *, use_audio_in_video: bool) -> prompts.Part:
    match part:
        case str():
            return part
        case Sound(samples=samples):
            return prompts.Sound(_tensor(samples))
        case Picture(pixels=pixels):
            return prompts.Picture(prompts.Tensor.of(pixels))
        case Video(frames=frames, frames_per_s=frames_per_s, sound=sound):
            heard = _tensor(sound) if sound is not None and use_audio_in_video else None
            return prompts.Video(prompts.Tensor.of(frames), frames_per_s, heard)
        case _:
            assert_never(part)


def _tensor(samples: np.ndarray) -> prompts.Tensor:
    return prompts.Tensor.of(samples.astype(np.float32, copy=False))
