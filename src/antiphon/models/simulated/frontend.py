"""The sim-relay pipeline's frontend: the last message of a chat is the text, and may begin with a command.

In: ChatInput. Out: EntryPayload with `text` uint8 rows and `command` uint8. Does not know: stages.
"""

import numpy as np

from antiphon.client.frontend import FrontendLimits
from antiphon.config.pipeline import Modality
from antiphon.errors import InvalidRequestError, UnsupportedModalityError
from antiphon.messages.params import RequestParams
from antiphon.messages.payload import EntryPayload
from antiphon.messages.tasks import ChatInput, TaskInput
from antiphon.models.simulated.pipeline import COMMANDS

TEXT = frozenset({Modality.TEXT})


class RelayFrontend:
    """Knows the operator's limits."""

    def __init__(self, limits: FrontendLimits) -> None:
        self._limits = limits

    def prepare(self, task_input: TaskInput) -> EntryPayload:
        """Check and convert; see the module docstring."""
        if not isinstance(task_input, ChatInput):
            raise UnsupportedModalityError("sim-relay takes written chats only", param="model")
        text = task_input.messages[-1].text if task_input.messages else ""
        if not 0 < len(text) <= self._limits.max_text_chars:
            raise InvalidRequestError(f"the text has 1 to {self._limits.max_text_chars} characters", param="messages")
        command, colon, rest = text.partition(":")
        if not colon or command not in COMMANDS:
            command, rest = "", text
        params = RequestParams(sampling=task_input.sampling)
        return EntryPayload("chat", TEXT, TEXT, params, {"text": _utf8(rest)}, {"command": _utf8(command)})


def _utf8(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
