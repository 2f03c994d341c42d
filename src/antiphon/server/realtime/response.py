"""One response of a realtime session: what it has said, and the events that say it.

In: text and audio as the stages make them, and how it ended. Out: events by their GA names.
Does not know: stages, conversations, who asked for it.
"""

import base64
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from antiphon.errors import AntiphonError
from antiphon.messages.client import AudioChunk, OutputEnd, Usage
from antiphon.server.http_errors import envelope
from antiphon.server.json_object import Json
from antiphon.server.realtime.conversation import Item, Spoken, Written
from antiphon.server.realtime.session_config import SessionConfig
from antiphon.server.realtime.wire_audio import WireOutput

_UNCOUNTED = Usage(0, 0)
"""Of a response that did not come to its end; clients read the fields of every response's usage."""


class Why(StrEnum):
    """Why a response was cancelled."""

    CLIENT = "client_cancelled"
    TURN = "turn_detected"


@dataclass(frozen=True)
class Request:
    """What was asked for. items: instead of the conversation; in_conversation: whether the answer is added to it."""

    config: SessionConfig
    items: tuple[Item, ...] | None = None
    in_conversation: bool = True
    metadata: Mapping[str, str] | None = None


@dataclass
class Response:
    """Owns one answer: its item, and whether it is begun or over."""

    request: Request
    conversation_id: str
    id: str = field(default_factory=lambda: f"resp_{secrets.token_hex(10)}")
    is_generating: bool = False
    has_begun: bool = False

    def __post_init__(self) -> None:
        self._part: Spoken | Written = Spoken() if self.request.config.speaks else Written("")
        self.item = Item("assistant", [], status="in_progress")
        self._wire = WireOutput(self.request.config.output_format)

    def created(self) -> Json:
        """The first event."""
        return {"type": "response.created", "response": self._as_json("in_progress")}

    def item_added(self) -> Json:
        """Its item, before it has any content."""
        return {**self._place(), "type": "response.output_item.added", "item": self.item.as_json()}

    def part_added(self) -> Json:
        """Its only part, empty."""
        self.has_begun = True
        self.item.parts.append(self._part)
        return {**self._content(), "type": "response.content_part.added", "part": self._part_json()}

    def text(self, delta: str) -> Json:
        """More words, spoken or written."""
        match self._part:
            case Spoken():
                self._part.transcript += delta
                kind = "response.output_audio_transcript.delta"
            case Written():
                self._part.text += delta
                kind = "response.output_text.delta"
        return {**self._content(), "type": kind, "delta": delta}

    def audio(self, chunk: AudioChunk) -> list[Json]:
        """More sound."""
        if not isinstance(self._part, Spoken):
            return []
        self._part.num_ms += chunk.duration_s * 1000
        return self._audio_delta(self._wire.encode(chunk))

    def completed(self, end: OutputEnd) -> list[Json]:
        """The last events of an answer that was made to its end."""
        if isinstance(self._part, Spoken):
            self._part.is_whole = True
        was_cut = end.finish_reason == "length"
        self.item.status = "incomplete" if was_cut else "completed"
        details: Json | None = {"type": "incomplete", "reason": "max_output_tokens"} if was_cut else None
        return [
            *self._audio_delta(self._wire.finish()),
            *self._closed(),
            self._done(self.item.status, details, end.usage),
        ]

    def cancelled(self, why: Why) -> list[Json]:
        """The last events of an answer that is not wanted any more."""
        self.item.status = "incomplete"
        return [*self._closed(), self._done("cancelled", {"type": "cancelled", "reason": why.value})]

    def failed(self, error: AntiphonError) -> list[Json]:
        """The last events of an answer that could not be made."""
        self.item.status = "incomplete"
        details: Json = {"type": "failed", "error": envelope(error)["error"]}
        return [*self._closed(), self._done("failed", details)]

    def _audio_delta(self, data: bytes) -> list[Json]:
        if not data:
            return []
        delta = base64.b64encode(data).decode()
        return [{**self._content(), "type": "response.output_audio.delta", "delta": delta}]

    def _closed(self) -> list[Json]:
        """The ends of part and item; none if nothing was begun."""
        if not self.has_begun:
            return []
        content = self._content()
        match self._part:
            case Spoken(transcript=transcript):
                ends: list[Json] = [
                    {**content, "type": "response.output_audio.done"},
                    {**content, "type": "response.output_audio_transcript.done", "transcript": transcript},
                ]
            case Written(text=text):
                ends = [{**content, "type": "response.output_text.done", "text": text}]
        return [
            *ends,
            {**content, "type": "response.content_part.done", "part": self._part_json()},
            {**self._place(), "type": "response.output_item.done", "item": self.item.as_json()},
        ]

    def _done(self, status: str, details: Json | None, usage: Usage = _UNCOUNTED) -> Json:
        response = {**self._as_json(status), "status_details": details, "usage": _usage_json(usage)}
        return {"type": "response.done", "response": response}

    def _as_json(self, status: str) -> Json:
        config, request = self.request.config, self.request
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": status,
            "status_details": None,
            "output": [self.item.as_json()] if self.has_begun else [],
            "conversation_id": self.conversation_id if request.in_conversation else None,
            "output_modalities": config.modalities,
            "max_output_tokens": config.max_output_tokens or "inf",
            "audio": {"output": config.output_json()},
            "usage": None,
            "metadata": request.metadata,
        }

    def _place(self) -> Json:
        return {"response_id": self.id, "output_index": 0}

    def _content(self) -> Json:
        return {"response_id": self.id, "item_id": self.item.id, "output_index": 0, "content_index": 0}

    def _part_json(self) -> Json:
        match self._part:
            case Spoken(transcript=transcript):
                return {"type": "audio", "transcript": transcript}
            case Written(text=text):
                return {"type": "text", "text": text}


def _usage_json(usage: Usage) -> Json:
    """What the text stage counted; it counts no audio."""
    num_in, num_out = usage.num_input_tokens, usage.num_output_tokens
    return {
        "total_tokens": num_in + num_out,
        "input_tokens": num_in,
        "output_tokens": num_out,
        "input_token_details": {"text_tokens": num_in, "audio_tokens": 0, "cached_tokens": 0},
        "output_token_details": {"text_tokens": num_out, "audio_tokens": 0},
    }
