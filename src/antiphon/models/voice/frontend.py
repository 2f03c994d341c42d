"""The voice pipeline's frontend: checks a task's input and makes the entry stage's arrays of it.

In: SpeechInput, ChatInput, TranscriptionInput. Out: EntryPayload, or InvalidRequestError naming the parameter.
Does not know: processes or models; it imports none.
"""

from typing import assert_never

import msgspec
import numpy as np

from antiphon.client.frontend import FrontendLimits
from antiphon.config.pipeline import Modality
from antiphon.errors import InvalidRequestError, RequestTooLargeError, UnsupportedModalityError
from antiphon.messages.conversation import Conversation, Turn
from antiphon.messages.params import RequestParams, SpeechParams, TranscriptionParams
from antiphon.messages.payload import EntryPayload
from antiphon.messages.tasks import (
    ChatInput,
    ChatMessage,
    ImageInput,
    Sound,
    SpeechInput,
    TaskInput,
    TranscriptionInput,
)
from antiphon.models.voice.voices import VOICES

LISTENER_RATE = 16_000
_MIN_AUDIO_SAMPLES = LISTENER_RATE // 50
_SPEEDS = (0.25, 4.0)
_LANGUAGE_CHARS = 16
_PROMPT_CHARS = 2_000
TEXT, AUDIO = frozenset({Modality.TEXT}), frozenset({Modality.AUDIO})


class VoiceFrontend:
    """Knows the operator's limits."""

    def __init__(self, limits: FrontendLimits) -> None:
        self._limits = limits

    def prepare(self, task_input: TaskInput) -> EntryPayload:
        """Check and convert; see the module docstring."""
        match task_input:
            case SpeechInput():
                return self._speech(task_input)
            case ChatInput():
                return self._chat(task_input)
            case TranscriptionInput():
                return self._transcription(task_input)
            case ImageInput():
                raise UnsupportedModalityError("voice draws nothing", param="model")
            case _:
                assert_never(task_input)

    def _speech(self, speech: SpeechInput) -> EntryPayload:
        self._check_text(speech.text, "input")
        if not any(char.isalnum() for char in speech.text):
            raise InvalidRequestError("`input` has no letter and no digit to speak; send words", param="input")
        spoken = _speech_params(speech.voice, speech.speed, speech.seed)
        params = RequestParams(speech=msgspec.structs.replace(spoken, continues=speech.continues))
        return EntryPayload("speech", TEXT, AUDIO, params, {"text": _utf8(speech.text)}, {})

    def _chat(self, chat: ChatInput) -> EntryPayload:
        if not chat.messages:
            raise InvalidRequestError("`messages` is empty; send at least one user message", param="messages")
        self._check_text("".join(message.text for message in chat.messages), "messages", allow_blank=True)
        for text in (*chat.sampling.stop, *(message.role for message in chat.messages)):
            _check_unicode(text, "stop" if text in chat.sampling.stop else "messages")
        self._check_text("".join(chat.tools), "tools", allow_blank=True)
        self._check_text(chat.json_schema, "response_format", allow_blank=True)
        calls = (call for message in chat.messages for call in message.tool_calls)
        self._check_text("".join(call.arguments for call in calls), "messages", allow_blank=True)
        speech = _speech_params(chat.voice, chat.speed, chat.sampling.seed) if chat.audio_out else SpeechParams()
        params = RequestParams(sampling=chat.sampling, speech=speech)
        outputs = TEXT | AUDIO if chat.audio_out else TEXT
        sounds = [self._sound(message) for message in chat.messages]
        turns = [sound for sound in sounds if sound is not None]
        said = tuple(
            _turn(message, spoken=sound is not None) for message, sound in zip(chat.messages, sounds, strict=True)
        )
        encoded = Conversation(said, chat.tools, chat.json_schema).encode()
        if not turns:
            self._check_text("".join(message.text for message in chat.messages), "messages")
            return EntryPayload("chat", TEXT, outputs, params, {"messages": encoded}, {})
        whole: dict[str, np.ndarray] = {
            "messages": encoded,
            "turn_samples": np.array([len(turn) for turn in turns], np.int64),
        }
        return EntryPayload("chat", TEXT | AUDIO, outputs, params, {"audio": _float32(np.concatenate(turns))}, whole)

    def _transcription(self, task: TranscriptionInput) -> EntryPayload:
        self._check_audio(task.audio, "file")
        if len(task.language) > _LANGUAGE_CHARS:
            raise InvalidRequestError(
                f"`language` is a text of {len(task.language)} characters; it must be a code such as 'en'",
                param="language",
            )
        language = task.language.lower().replace("_", "-").partition("-")[0].strip()  # the listener knows no regions
        if len(task.prompt) > _PROMPT_CHARS:
            raise InvalidRequestError(
                f"`prompt` has {len(task.prompt)} characters; it must have at most {_PROMPT_CHARS}", param="prompt"
            )
        _check_unicode(task.language, "language")
        _check_unicode(task.prompt, "prompt")
        params = RequestParams(
            transcription=TranscriptionParams(
                language, task.prompt, task.temperature, task.times_words, task.translates
            )
        )
        return EntryPayload("transcription", AUDIO, TEXT, params, {"audio": _float32(task.audio)}, {})

    def _check_text(self, text: str, param: str, *, allow_blank: bool = False) -> None:
        if not text.strip() and not allow_blank:
            raise InvalidRequestError(f"`{param}` is empty or blank; send some text", param=param)
        if len(text) > self._limits.max_text_chars:
            raise InvalidRequestError(
                f"`{param}` has {len(text)} characters; it must have at most {self._limits.max_text_chars} "
                "(server.max_text_chars); send it in parts",
                param=param,
                code="string_above_max_length",
            )

    def _sound(self, message: ChatMessage) -> np.ndarray | None:
        """[samples] of all spoken parts, one behind the other; None if there are none."""
        sounds = []
        for part in message.parts:
            if isinstance(part, Sound):
                self._check_audio(part.samples, "messages")
                sounds.append(part.samples)
            elif not isinstance(part, str):
                raise UnsupportedModalityError(
                    "this pipeline sees neither pictures nor videos; send text or sound", param="messages"
                )
        if not sounds:
            return None
        sound = np.concatenate(sounds)
        self._check_audio(sound, "messages")
        return sound

    def _check_audio(self, audio: np.ndarray, param: str) -> None:
        if audio.ndim != 1:
            shape = "x".join(map(str, audio.shape))
            raise InvalidRequestError(
                f"the audio must be mono, [samples], and is {shape}", param=param, code="invalid_audio"
            )
        if len(audio) < _MIN_AUDIO_SAMPLES:
            raise InvalidRequestError(
                "the audio is shorter than 20 ms; send more of it", param=param, code="invalid_audio"
            )
        if len(audio) > self._limits.max_audio_s * LISTENER_RATE:
            raise RequestTooLargeError(
                f"the audio lasts {len(audio) / LISTENER_RATE:.0f} s; at most {self._limits.max_audio_s:g} s are "
                "allowed (server.max_audio_s)",
                param=param,
            )


def _check_unicode(text: str, param: str) -> None:
    """Parameters travel in control messages, which are UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"`{param}` has half a surrogate pair; send valid Unicode", param=param) from error


def _speech_params(voice: str, speed: float, seed: int | None) -> SpeechParams:
    least, most = _SPEEDS
    if not least <= speed <= most:
        raise InvalidRequestError(f"`speed` is {speed:g}; it must be from {least:g} to {most:g}", param="speed")
    return SpeechParams(voice=voice or VOICES[0], speed=speed, seed=seed)


def _turn(message: ChatMessage, *, spoken: bool) -> Turn:
    """A turn as the thinker reads it; `spoken` marks where the listener puts the transcript, behind the text."""
    content = _utf8(message.text).tobytes().decode()
    return Turn(message.role, content, spoken, message.tool_calls, message.tool_call_id)


def _utf8(text: str) -> np.ndarray:
    """[num_bytes] uint8; lone surrogates, which JSON can carry, become question marks."""
    return np.frombuffer(text.encode("utf-8", "replace"), np.uint8)


def _float32(audio: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(audio, np.float32)
