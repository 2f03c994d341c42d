"""The sim-voice pipeline's frontend: the last message of a chat, or a speech's input, is the text.

In: ChatInput, SpeechInput. Out: EntryPayload with `text` uint8 rows and `command` uint8. Does not know: stages.
"""

import numpy as np

from antiphon.client.frontend import FrontendLimits
from antiphon.config.pipeline import Modality
from antiphon.errors import InvalidRequestError, UnsupportedModalityError
from antiphon.messages.params import RequestParams
from antiphon.messages.payload import EntryPayload
from antiphon.messages.tasks import ChatInput, SpeechInput, TaskInput
from antiphon.models.simulated.voice_pipeline import COMMANDS

TEXT, AUDIO = frozenset({Modality.TEXT}), frozenset({Modality.AUDIO})


class SimVoiceFrontend:
    """Knows the operator's limits."""

    def __init__(self, limits: FrontendLimits) -> None:
        self._limits = limits

    def prepare(self, task_input: TaskInput) -> EntryPayload:
        """Check and convert; see the module docstring."""
        match task_input:
            case ChatInput(messages=messages, audio_out=audio_out, sampling=sampling):
                text = messages[-1].text if messages else ""
                outputs, params = TEXT | AUDIO if audio_out else TEXT, RequestParams(sampling=sampling)
                return self._payload("chat", text, outputs, params)
            case SpeechInput(text=text):
                return self._payload("speech", text, AUDIO, RequestParams())
            case _:
                raise UnsupportedModalityError("sim-voice hears nothing; send text", param="model")

    def _payload(self, task: str, text: str, outputs: frozenset[Modality], params: RequestParams) -> EntryPayload:
        command, colon, rest = text.partition(":")
        if not colon or command not in COMMANDS:
            command, rest = "", text
        if not 0 < len(rest) <= self._limits.max_text_chars:
            raise InvalidRequestError(f"the text has 1 to {self._limits.max_text_chars} characters", param="input")
        return EntryPayload(task, TEXT, outputs, params, {"text": _utf8(rest)}, {"command": _utf8(command)})


def _utf8(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
