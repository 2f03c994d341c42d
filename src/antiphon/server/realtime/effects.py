"""What a realtime session wants done: the values that the state machine hands out and Talk carries out.

In: nothing. Out: frozen values. Does not know: how they are done.
"""

from dataclasses import dataclass

from antiphon.messages.tasks import ChatInput, TranscriptionInput
from antiphon.server.json_object import Json


@dataclass(frozen=True)
class Say:
    """Send an event to the client."""

    event: Json


@dataclass(frozen=True)
class Generate:
    """Start the response's request; its outputs go to `on_output`, its end to `on_end` or `on_failed`."""

    response_id: str
    chat: ChatInput


@dataclass(frozen=True)
class Stop:
    """Abort the response's request, if it runs."""

    response_id: str


@dataclass(frozen=True)
class WriteDown:
    """Transcribe a spoken part; its words go to `on_transcript`, a failure to `on_transcript_failed`, by `number`."""

    number: int
    item_id: str
    speech: TranscriptionInput


Effect = Say | Generate | Stop | WriteDown
