"""WebSocket /v1/audio/speech/stream: text comes in pieces, audio leaves as it is made, as JSON events both ways.

In: events that say how to speak and what. Out: events with the audio of one text after the other.
Does not know: sentences, stages, encoders.
"""

import asyncio
import base64
import logging
from enum import Enum, auto
from typing import assert_never

from fastapi import APIRouter
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket

from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.server.callers import client_of
from antiphon.server.context import ServerContext
from antiphon.server.drain import Drain
from antiphon.server.edge import clock_of, request_id_of
from antiphon.server.outcomes import Status, usage_of
from antiphon.server.socket_answer import new_event_id
from antiphon.server.speech import check_spoken, sample_rate_of
from antiphon.server.speech_events import (
    EVENTS,
    AppendText,
    CancelResponse,
    EndText,
    FlushText,
    SessionUpdate,
    SpeechEvent,
    SpeechSession,
)
from antiphon.server.streamed_speech import StreamedSpeech
from antiphon.server.websocket import EventSocket, event_socket

_log = logging.getLogger(__name__)


def speech_stream_router(context: ServerContext, drain: Drain) -> APIRouter:
    """WebSocket /v1/audio/speech/stream."""
    router = APIRouter()

    @router.websocket("/v1/audio/speech/stream")
    async def stream_speech(websocket: WebSocket) -> None:
        context.client.pipeline.task("speech")
        async with event_socket(websocket, EVENTS, context.settings, subprotocol="realtime") as socket:
            await _Session(context, drain, socket, websocket).serve()

    return router


class _Text(Enum):
    """The text of the audio that is under way. LOST: the audio has failed; its text goes nowhere until it ends."""

    NONE = auto()
    OPEN = auto()
    COMPLETE = auto()
    LOST = auto()


class _Session:
    """Owns what one client has wished, and its audio that is under way.

    An audio that was cancelled may still be busy with letting go of its requests while the next one begins.
    """

    def __init__(
        self, context: ServerContext, drain: Drain, socket: EventSocket[SpeechEvent], connection: HTTPConnection
    ) -> None:
        self._context = context
        self._drain = drain
        self._socket = socket
        self._id = request_id_of(connection)
        self._client = client_of(connection)
        self._clock = clock_of(connection)
        self._wishes = SpeechSession()
        self._speech: StreamedSpeech | None = None
        self._text = _Text.NONE
        self._running: asyncio.Task[None] | None = None
        self._letting_go: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Until the client leaves, or the server does and no audio is under way."""
        self._say("session.created", session=self._described())
        draining = asyncio.ensure_future(self._drain.begun.wait())
        coming = asyncio.ensure_future(anext(self._socket, None))
        try:
            while True:
                watched = {coming, *self._letting_go, *((self._running,) if self._running else ())}
                if not self._drain.is_draining:
                    watched.add(draining)
                await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                self._see_what_is_over()
                if coming.done():
                    if (event := coming.result()) is None:
                        return
                    self._hear(event)
                    coming = asyncio.ensure_future(anext(self._socket, None))
                if self._running is None:
                    self._drain.check()
        finally:
            tasks = [task for task in (coming, draining, self._running, *self._letting_go) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _hear(self, event: SpeechEvent) -> None:
        try:
            match event:
                case SessionUpdate():
                    self._update(event.session)
                case AppendText() | FlushText() | EndText():
                    self._hear_text(event)
                case CancelResponse():
                    self._cancel()
                case _:
                    assert_never(event)
        except AntiphonError as error:
            self._socket.tell(error, event)

    def _hear_text(self, event: AppendText | FlushText | EndText) -> None:
        if self._text is _Text.LOST:
            self._text = _Text.NONE if isinstance(event, EndText) else _Text.LOST
            return
        if self._text is _Text.COMPLETE:
            raise _not_now("the text is complete; wait for speech.audio.done, or send response.cancel")
        if self._speech is None and not isinstance(event, AppendText):
            raise _not_now("no text has come; send input_text.append first")
        speech = self._speech or self._begin()
        match event:
            case AppendText(text=text):
                speech.append(text)
            case FlushText():
                speech.flush()
            case EndText():
                speech.finish()
                self._text = _Text.COMPLETE
            case _:
                assert_never(event)

    def _update(self, change: SpeechSession) -> None:
        if self._text is not _Text.NONE:
            raise _not_now("an audio is under way; change the session before its first text or after its end")
        wishes = self._wishes.model_copy(update=change.model_dump(exclude_unset=True))
        pipeline = self._context.client.pipeline
        if wishes.model:
            self._context.catalogue.check(wishes.model)
        check_spoken(wishes, pipeline)
        self._wishes = wishes
        self._say("session.updated", session=self._described())

    def _cancel(self) -> None:
        if self._text is _Text.NONE:
            raise _not_now("no audio is under way")
        self._text = _Text.NONE
        if self._running is not None:
            self._running.cancel()
            self._letting_go.add(self._running)
            self._end(Status.CANCELLED)

    def _begin(self) -> StreamedSpeech:
        def flushed() -> None:
            self._say("speech.audio.flushed")

        clock = self._clock.another()
        clock.begin("speech_stream")
        speech = StreamedSpeech(self._context, self._wishes, self._client, clock, self._give, flushed)
        self._speech, self._text = speech, _Text.OPEN
        self._running = asyncio.create_task(speech.run())
        _log.info("req=%s audio=%s has begun", self._id, speech.request_id)
        return speech

    async def _give(self, encoded: bytes) -> None:
        await self._socket.room()
        if self._wishes.audio_messages == "binary":
            return self._socket.send_bytes(encoded)
        self._say("speech.audio.delta", audio=base64.b64encode(encoded).decode())

    def _see_what_is_over(self) -> None:
        for task in [task for task in self._letting_go if task.done()]:
            self._letting_go.discard(task)
            if not task.cancelled():
                task.result()
        if self._running is None or not self._running.done():
            return
        try:
            self._running.result()
        except AntiphonError as error:
            self._socket.tell(error)
            self._text = _Text.NONE if self._text is _Text.COMPLETE else _Text.LOST
            self._end(Status.FAILED)
        else:
            self._text = _Text.NONE
            self._end(Status.COMPLETED)

    def _end(self, status: Status) -> None:
        assert self._speech is not None
        usage, duration_s = usage_of(self._speech.usage), round(self._speech.duration_s, 3)
        self._say("speech.audio.done", status=status, usage=usage, duration_s=duration_s)
        _log.info("req=%s audio=%s is over: %s", self._id, self._speech.request_id, status)
        self._speech = self._running = None

    def _described(self) -> dict[str, object]:
        wishes = self._wishes
        return {
            "id": self._id,
            "object": "audio.speech.session",
            "model": wishes.model or self._context.catalogue.names[0],
            "voice": wishes.voice,
            "language": wishes.language,
            "speed": wishes.speed,
            "seed": wishes.seed,
            "response_format": wishes.response_format,
            "audio_messages": wishes.audio_messages,
            "sample_rate": sample_rate_of(wishes, self._context.client.pipeline),
        }

    def _say(self, kind: str, **fields: object) -> None:
        self._socket.send({"type": kind, "event_id": new_event_id(), **fields})


def _not_now(problem: str) -> InvalidRequestError:
    return InvalidRequestError(problem, param="type", code="invalid_event_order")
