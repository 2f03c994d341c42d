"""The frontend of all pipelines that are made of a profile: a text goes in, as bytes, whatever the task.

In: ChatInput, SpeechInput, ImageInput. Out: EntryPayload with `prompt` uint8 rows. Does not know: stages; the entry
stage takes each word of the text for a token.
"""

import numpy as np

from antiphon.client.frontend import FrontendLimits
from antiphon.config.pipeline import Modality
from antiphon.errors import InvalidRequestError, UnsupportedModalityError
from antiphon.messages.params import RequestParams, SpeechParams
from antiphon.messages.payload import EntryPayload
from antiphon.messages.tasks import ChatInput, ImageInput, SpeechInput, TaskInput, has_media

TEXT, AUDIO, IMAGE = frozenset({Modality.TEXT}), frozenset({Modality.AUDIO}), frozenset({Modality.IMAGE})


class ProfileFrontend:
    """Knows the operator's limits."""

    def __init__(self, limits: FrontendLimits) -> None:
        self._limits = limits

    def prepare(self, task_input: TaskInput) -> EntryPayload:
        """Check and convert; see the module docstring."""
        if has_media(task_input):
            raise UnsupportedModalityError("simulated pipelines take written requests only", param="messages")
        match task_input:
            case ChatInput(messages=messages, audio_out=audio_out, sampling=sampling):
                text = "\n".join(message.text for message in messages)
                outputs = TEXT | AUDIO if audio_out else TEXT
                return self._payload("chat", text, "messages", outputs, RequestParams(sampling=sampling))
            case SpeechInput(text=text, speed=speed):
                return self._payload("speech", text, "input", AUDIO, RequestParams(speech=SpeechParams(speed=speed)))
            case ImageInput(text=text):
                return self._payload("image", text, "prompt", IMAGE, RequestParams())
            case _:
                raise UnsupportedModalityError("simulated pipelines hear nothing; send text", param="model")

    def _payload(
        self, task: str, text: str, param: str, outputs: frozenset[Modality], params: RequestParams
    ) -> EntryPayload:
        if not text.strip() or len(text) > self._limits.max_text_chars:
            raise InvalidRequestError(f"the text has 1 to {self._limits.max_text_chars} characters", param=param)
        prompt = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
        return EntryPayload(task, TEXT, outputs, params, {"prompt": prompt}, {})
