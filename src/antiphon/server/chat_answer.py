"""The shapes of a chat answer: one completion object, or the chunks of a stream.

In: text deltas, audio bytes, the end of the request. Out: OpenAI's dict, or its chunks as events.
Does not know: the runtime, HTTP, when things happen.
"""

import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphon.ids import RequestId
from antiphon.messages.client import CalledTool, OutputEnd, TokenChance, TokenLogprob
from antiphon.server.json_object import Json
from antiphon.server.sse import HOLE, EventForm, event

_LEAST_LOGPROB = -9999.0


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

    def audio_id(self, index: int) -> str:
        """`audio-9f86d081884c7d65`; `audio-9f86d081884c7d65.1` of the second answer."""
        name = f"audio-{self.request_id.removeprefix('req-')}"
        return f"{name}.{index}" if index else name


def usage(ends: list[OutputEnd]) -> Json:
    """What the text stage counted for each answer: the prompt, which is the same, once, and all new tokens."""
    num_input_tokens = ends[0].usage.num_input_tokens
    num_output_tokens = sum(end.usage.num_output_tokens for end in ends)
    return {
        "prompt_tokens": num_input_tokens,
        "completion_tokens": num_output_tokens,
        "total_tokens": num_input_tokens + num_output_tokens,
    }


def logprobs_row(logprobs: Sequence[TokenLogprob]) -> Json:
    """The tokens of a text as OpenAI lists them."""
    content = [{**_chance_row(entry.token), "top_logprobs": list(map(_chance_row, entry.best))} for entry in logprobs]
    return {"content": content, "refusal": None}


def _chance_row(chance: TokenChance) -> Json:
    """A probability of 0 has no logarithm in JSON; OpenAI writes -9999."""
    return {"token": chance.text, "logprob": max(chance.logprob, _LEAST_LOGPROB), "bytes": list(chance.data)}


def _call_row(head: AnswerHead, index: int, number: int, call: CalledTool) -> Json:
    """A call, with an id that no other call of this server's has."""
    name = head.request_id.removeprefix("req-")
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{name}_{index}_{number}", "type": "function", "function": function}


def choice_row(
    head: AnswerHead,
    index: int,
    text: str,
    audio: bytes | None,
    logprobs: Sequence[TokenLogprob] | None,
    calls: Sequence[CalledTool],
    finish_reason: str,
) -> Json:
    """A whole answer. `content` holds the text also when it was spoken; `audio.transcript` repeats it."""
    message: Json = {"role": "assistant", "content": text, "refusal": None}
    if audio is not None:
        message["audio"] = {
            "id": head.audio_id(index),
            "data": base64.b64encode(audio).decode(),
            "transcript": text,
            "expires_at": head.created_s,  # nothing is kept for later turns
        }
    if calls:
        message["content"] = text or None
        message["tool_calls"] = [_call_row(head, index, number, call) for number, call in enumerate(calls)]
    told = None if logprobs is None else logprobs_row(logprobs)
    return {"index": index, "message": message, "logprobs": told, "finish_reason": finish_reason}


def completion(head: AnswerHead, rows: list[Json], ends: list[OutputEnd]) -> Json:
    """All answers, and what they took."""
    return {
        "id": head.completion_id,
        "object": "chat.completion",
        "created": head.created_s,
        "model": head.model,
        "choices": rows,
        "usage": usage(ends),
    }


def usage_event(head: AnswerHead, ends: list[OutputEnd]) -> bytes:
    """The chunk after the last, if it was asked for."""
    return event({**_envelope(head), "choices": [], "usage": usage(ends)})


def _envelope(head: AnswerHead) -> Json:
    return {
        "id": head.completion_id,
        "object": "chat.completion.chunk",
        "created": head.created_s,
        "model": head.model,
    }


class ChunkWriter:
    """Owns what a stream has said once and must not say again: OpenAI's clients join strings and add numbers.

    Text goes into `delta.content`; in a spoken answer `delta.audio.transcript` repeats it, because OpenAI's audio
    clients read only that. `delta.audio.id` comes with the first audio delta, `expires_at` with the last.
    """

    def __init__(self, head: AnswerHead, index: int, *, audio_out: bool, include_usage: bool) -> None:
        self.num_calls = 0
        self._head = head
        self._index = index
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

    def scored_text(self, text: str, logprobs: Sequence[TokenLogprob]) -> bytes:
        """More text, with the log probabilities of its tokens."""
        audio_id = self._audio_id() if self._audio_out else {}
        return event(self._chunk(self._text_delta(text, audio_id), logprobs=logprobs_row(logprobs)))

    def tool_call(self, call: CalledTool) -> bytes:
        """A whole call."""
        row = {"index": self.num_calls, **_call_row(self._head, self._index, self.num_calls, call)}
        self.num_calls += 1
        return event(self._chunk({"tool_calls": [row]}))

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

    def _audio_id(self) -> Json:
        if self._audio_id_said:
            return {}
        self._audio_id_said = True
        return {"id": self._head.audio_id(self._index)}

    def _text_delta(self, text: str, audio_id: Json) -> Json:
        return {"content": text, "audio": {**audio_id, "transcript": text}} if self._audio_out else {"content": text}

    def _chunk(self, delta: Json, finish_reason: str | None = None, logprobs: Json | None = None) -> Json:
        choice = {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        chunk: Json = {**_envelope(self._head), "choices": [choice]}
        if self._include_usage:
            chunk["usage"] = None
        return chunk
