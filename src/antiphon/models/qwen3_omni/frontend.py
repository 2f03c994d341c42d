"""The frontend of `qwen3-omni`: checks a conversation and packs it for the thinker.

In: ChatInput. Out: EntryPayload, or InvalidRequestError naming the parameter.
Does not know: processes, checkpoints (the thinker's process tokenizes), speakers (they are in the checkpoint).
"""

import numpy as np

from antiphon.client.frontend import FrontendLimits
from antiphon.config.pipeline import Modality
from antiphon.errors import InvalidRequestError, RequestTooLargeError, UnsupportedModalityError
from antiphon.messages.params import RequestParams, SpeechParams
from antiphon.messages.payload import EntryPayload
from antiphon.messages.tasks import ChatInput, ChatMessage, TaskInput
from antiphon.models.qwen3_omni import prompts

AUDIO_RATE = 16_000
_MIN_AUDIO_SAMPLES = AUDIO_RATE // 50
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
        document = prompts.encode(prompts.Conversation(tuple(map(_turn, chat.messages))))
        return payload(document, chat)

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

    def _check_message(self, message: ChatMessage) -> None:
        if message.role not in _ROLES:
            raise InvalidRequestError(f"role {message.role!r} is none of {', '.join(_ROLES)}", param="messages")
        if message.audio is None:
            return
        if message.audio.ndim != 1 or len(message.audio) < _MIN_AUDIO_SAMPLES:
            raise InvalidRequestError(
                "the audio must be mono and at least 20 ms", param="messages", code="invalid_audio"
            )
        if len(message.audio) > self._limits.max_audio_s * AUDIO_RATE:
            raise RequestTooLargeError(
                f"the audio lasts {len(message.audio) / AUDIO_RATE:.0f} s; at most {self._limits.max_audio_s:g} s are "
                "allowed (server.max_audio_s)",
                param="messages",
            )


def payload(document: np.ndarray, chat: ChatInput) -> EntryPayload:
    """The entry payload of a packed prompt; `chat` says how to sample, and whether and by whom it is spoken."""
    inputs = {Modality.TEXT} | {Modality.AUDIO for message in chat.messages if message.audio is not None}
    outputs = {Modality.TEXT, Modality.AUDIO} if chat.audio_out else {Modality.TEXT}
    speech = SpeechParams(voice=chat.voice, seed=chat.sampling.seed) if chat.audio_out else SpeechParams()
    params = RequestParams(sampling=chat.sampling, speech=speech)
    return EntryPayload("chat", frozenset(inputs), frozenset(outputs), params, {prompts.KEY: document}, {})


def _turn(message: ChatMessage) -> prompts.Turn:
    try:
        message.text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError("a message is not valid Unicode", param="messages") from error
    audio = None if message.audio is None else prompts.Tensor.of(message.audio.astype(np.float32, copy=False))
    return prompts.Turn(message.role, message.text, audio)
