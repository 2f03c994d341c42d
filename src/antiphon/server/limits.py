"""What one api-server refuses before any stage hears of it: bodies over a limit.

In: ServerSettings and ASGI messages. Out: the same messages, or one 413 in the error envelope.
Does not know: routes, tasks, JSON.
"""

import asyncio
from dataclasses import dataclass
from typing import Self

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.config.deploy import ServerDeploy
from antiphon.config.pipeline import PipelineSpec
from antiphon.errors import RequestTooLargeError
from antiphon.server.http_errors import error_response

_MIB = 1 << 20
_OPENAI_NAMES = {
    "speech": ("tts-1", "tts-1-hd", "gpt-4o-mini-tts"),
    "chat": ("gpt-4o-audio-preview", "gpt-4o-mini-audio-preview"),
    "transcription": ("whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe"),
}
"""Task -> the model names that OpenAI's clients send for it, some of them without a way to send another."""


@dataclass(frozen=True)
class ServerSettings:
    """Limits and names of one api-server. `model_aliases` are served beside the pipeline's own name."""

    max_body_bytes: int = 32 * _MIB
    max_audio_s: float = 1800.0
    model_aliases: tuple[str, ...] = tuple(name for names in _OPENAI_NAMES.values() for name in names)

    @classmethod
    def from_deploy(cls, deploy: ServerDeploy, pipeline: PipelineSpec) -> Self:
        """The operator's limits, and OpenAI's names for the tasks that `pipeline` has."""
        tasks = {task.name for task in pipeline.tasks}
        aliases = (name for task, names in _OPENAI_NAMES.items() if task in tasks for name in names)
        return cls(deploy.max_body_mib * _MIB, deploy.max_audio_s, tuple(aliases))


class BodyLimit:
    """ASGI middleware: a body over `max_body_bytes` gets a 413, by its Content-Length or once it has grown so far.

    Nothing over the limit is kept. The rest of a refused body is read and dropped for a short while, so that a
    client that is still sending gets to read the answer instead of a broken connection.
    """

    _MAX_DROPPED_BYTES = 512 * _MIB
    _DROP_DEADLINE_S = 5.0

    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if _content_length(scope) > self._max_body_bytes:
            return await self._refuse(scope, receive, send)
        num_bytes = 0

        async def limited_receive() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_body_bytes:
                raise RequestTooLargeError(self._problem())
            return message

        async def guarded_send(message: Message) -> None:
            if num_bytes <= self._max_body_bytes:  # else the answer is the 413 below, not what the app made of it
                await send(message)

        try:
            await self._app(scope, limited_receive, guarded_send)
        except RequestTooLargeError:
            if num_bytes <= self._max_body_bytes:
                raise
        if num_bytes > self._max_body_bytes:
            await self._refuse(scope, receive, send)

    def _problem(self) -> str:
        return (
            f"the body is larger than the limit of {self._max_body_bytes} bytes; "
            "send less at once or raise server.max_body_mib"
        )

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the whole 413, then drops what is still coming, then ends the response: uvicorn reads until then."""
        response = error_response(RequestTooLargeError(self._problem()))
        response.headers["connection"] = "close"
        await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
        await send({"type": "http.response.body", "body": bytes(response.body), "more_body": True})
        try:
            async with asyncio.timeout(self._DROP_DEADLINE_S):
                await self._drop_rest(receive)
        except TimeoutError:
            pass  # the client neither sends nor hangs up; closing the connection is all that is left
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _drop_rest(self, receive: Receive) -> None:
        num_dropped = 0
        while num_dropped < self._MAX_DROPPED_BYTES:
            message = await receive()
            if not message.get("more_body", False):
                return
            num_dropped += len(message["body"])


def _content_length(scope: Scope) -> int:
    """The announced size of the body; 0 if there is none (or none that is a number: the server refuses that)."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
