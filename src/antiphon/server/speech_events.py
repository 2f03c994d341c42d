"""The events that a client of /v1/audio/speech/stream sends.

In: JSON objects; unknown fields are ignored. Out: validated models. Does not know: what is done, what is answered.
"""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from antiphon.server.audio_encode import AudioFormat
from antiphon.server.schema import SpokenBody, Text
from antiphon.server.websocket import ClientEvent


class SpeechSession(SpokenBody):
    """How the texts of one WebSocket are spoken, from the next text on."""

    model: str = Field(default="", description="A name from GET /v1/models; default: the one that is served.")
    response_format: AudioFormat = Field(default=AudioFormat.PCM, description="Container and codec of the audio.")
    audio_messages: Literal["events", "binary"] = Field(
        default="events", description="`events`: audio as base64 in speech.audio.delta. `binary`: as binary messages."
    )


class SessionUpdate(ClientEvent):
    """Changes the fields that are given; not while an audio is under way."""

    session: SpeechSession = Field(description="What is to be changed.")


class AppendText(ClientEvent):
    """More text, cut anywhere; the first one begins an audio."""

    text: Text = Field(description="Cut anywhere.")


class FlushText(ClientEvent):
    """Speak what there is now."""


class EndText(ClientEvent):
    """The text is complete, and so will the audio be."""


class CancelResponse(ClientEvent):
    """Stop: the audio ends, what is not spoken is forgotten."""


SpeechEvent = SessionUpdate | AppendText | FlushText | EndText | CancelResponse
EVENTS: Mapping[str, type[SpeechEvent]] = {
    "session.update": SessionUpdate,
    "input_text.append": AppendText,
    "input_text.flush": FlushText,
    "input_text.done": EndText,
    "response.cancel": CancelResponse,
}
