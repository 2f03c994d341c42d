"""A conversation on its way to the stage that answers it: one JSON document.

In: the turns as text, the tools there are, the form of the answer. Out: uint8 [num_bytes], and back.
Does not know: chat templates, tokens, media (a stage that hears fills its transcripts in).
"""

import msgspec
import numpy as np

from antiphon.messages.tasks import ToolCall


class Turn(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message. spoken: a transcript is still to come behind `content`. The rest: see ChatMessage."""

    role: str
    content: str = ""
    spoken: bool = False
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


class Conversation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the model shall go on with. tools, json_schema: see ChatInput."""

    turns: tuple[Turn, ...]
    tools: tuple[str, ...] = ()
    json_schema: str = ""

    def encode(self) -> np.ndarray:
        """uint8 [num_bytes]."""
        return np.frombuffer(msgspec.json.encode(self), np.uint8)

    @staticmethod
    def decode(document: np.ndarray) -> "Conversation":
        """What `encode` gave."""
        return msgspec.json.decode(document.tobytes(), type=Conversation)
