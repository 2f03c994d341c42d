"""The shapes of a chat answer: one completion object, or the chunks of a stream.

In: text deltas, audio bytes, the end of the request. Out: OpenAI's dict, or its chunks as events.
Does not know: the runtime, HTTP, when things happen.
"""

import base64
import time
from dataclasses import dataclass, field

from antiphon.ids import RequestId
from antiphon.messages.client import OutputEnd
from antiphon.server.sse import HOLE, EventForm, event

Json = dict[str, object]


@dataclass(frozen=True)
class AnswerHead:
    """What all chunks of one answer share. client: who has asked."""

    request_id: RequestId
    model: str
    client: str = ""
    created_s: int = field(default_factory=lambda: int(time.time()))

    @property
    def completion_id(self) -> str:
        """`chatcmpl-9f86d081884c7d65`."""
        return f"chatcmpl-{self.request_id.removeprefix('req-')}"

    @property
    def audio_id(self) -> str:
        """`audio-9f86d081884c7d65`."""
        return f"audio-{self.request_id.removeprefix('req-')}"


def usage(end: OutputEnd) -> Json:
    """What the text stage counted."""
    counted = end.usage
    return {
        "prompt_tokens": counted.num_input_tokens,
        "completion_tokens": counted.num_output_tokens,
        "total_tokens": counted.num_input_tokens + counted.num_output_tokens,
    }


def completion(head: AnswerHead, text: str, audio: bytes | None, end: OutputEnd) -> Json:
    """A whole answer. `content` holds the text also when it was spoken; `audio.transcript` repeats it."""
    message: Json = {"role": "assistant", "content": text, "refusal": None}
    if audio is not None:
        message["audio"] = {
            "id": head.audio_id,
            "data": base64.b64encode(audio).decode(),
            "transcript": text,
            "expires_at": head.created_s,  # nothing is kept for later turns
        }
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": end.finish_reason}
    return {
        "id": head.completion_id,
        "object": "chat.completion",
        "created": head.created_s,
        "model": head.model,
        "choices": [choice],
        "usage": usage(end),
    }


class ChunkWriter:
    """Owns what a stream has said once and must not say again: OpenAI's clients join strings and add numbers.

    Text goes into `delta.content`; in a spoken answer `delta.audio.transcript` repeats it, because OpenAI's audio
    clients read only that. `delta.audio.id` comes with the first audio delta, `expires_at` with the last.
    """

    def __init__(self, head: AnswerHead, *, audio_out: bool, include_usage: bool) -> None:
        self._head = head
        self._audio_out = audio_out
        self._include_usage = include_usage
        self._audio_id_said = False
        self._more_text = EventForm(self._chunk(self._text_delta(HOLE, {})))
        self._more_audio = EventForm(self._chunk({"audio": {"data": HOLE}}))

    def role(self) -> bytes:
        """The first chunk."""
        return event(self._chunk({"role": "assistant", "content": ""}))

    def text(self, text: str) -> bytes:
        """More text."""
        if self._audio_out and not self._audio_id_said:
            return event(self._chunk(self._text_delta(text, self._audio_id())))
        return self._more_text.fill(text)

    def audio(self, encoded: str) -> bytes:
        """More audio."""
        if not self._audio_id_said:
            return event(self._chunk({"audio": {**self._audio_id(), "data": encoded}}))
        return self._more_audio.fill(encoded)

    def audio_end(self) -> bytes:
        """After the last audio: nothing of it is kept for later turns."""
        return event(self._chunk({"audio": {**self._audio_id(), "expires_at": self._head.created_s}}))

    def finish(self, reason: str) -> bytes:
        """The last chunk with a choice."""
        return event(self._chunk({}, finish_reason=reason))

    def usage(self, end: OutputEnd) -> bytes:
        """The chunk after the last, if it was asked for."""
        return event({**self._envelope(), "choices": [], "usage": usage(end)})

    def _audio_id(self) -> Json:
        if self._audio_id_said:
            return {}
        self._audio_id_said = True
        return {"id": self._head.audio_id}

    def _text_delta(self, text: str, audio_id: Json) -> Json:
        return {"content": text, "audio": {**audio_id, "transcript": text}} if self._audio_out else {"content": text}

    def _chunk(self, delta: Json, finish_reason: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        chunk: Json = {**self._envelope(), "choices": [choice]}
        if self._include_usage:
            chunk["usage"] = None
        return chunk

    def _envelope(self) -> Json:
        head = self._head
        return {
            "id": head.completion_id,
            "object": "chat.completion.chunk",
            "created": head.created_s,
            "model": head.model,
        }
