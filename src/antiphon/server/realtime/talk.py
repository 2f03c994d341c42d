"""Runs one realtime session: its client's events, its requests to the stages, its end.

In: an open socket, a session and its ears. Out: the session's effects, done.
Does not know: what events mean, when to answer.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import assert_never

from starlette.requests import HTTPConnection

from antiphon.errors import AntiphonError
from antiphon.ids import RequestId, new_request_id
from antiphon.messages.client import AudioChunk, OutputEnd, Segment, TextDelta
from antiphon.server.callers import client_of
from antiphon.server.context import ServerContext
from antiphon.server.data_url import base64_bytes
from antiphon.server.drain import Drain
from antiphon.server.edge import clock_of, request_id_of
from antiphon.server.realtime.ears import Ears, TurnBorder
from antiphon.server.realtime.effects import Effect, Generate, Say, Stop, WriteDown
from antiphon.server.realtime.schema import AppendAudio
from antiphon.server.realtime.session import Session
from antiphon.server.realtime.wire_audio import HEARING_RATE
from antiphon.server.websocket import ClientEvent, EventSocket

_log = logging.getLogger(__name__)
_MUCH_AUDIO_BYTES = 48_000
"""What is appended at once and is more is heard in a thread, which costs more than hearing less does."""


class Talk:
    """Owns the tasks of one session; none outlives `run`."""

    def __init__(
        self,
        context: ServerContext,
        socket: EventSocket[ClientEvent],
        connection: HTTPConnection,
        session: Session,
        ears: Ears,
    ) -> None:
        self._context = context
        self._socket = socket
        self._request_id = request_id_of(connection)
        self._clock = clock_of(connection)
        self._client = client_of(connection)
        self._session = session
        self._ears = ears
        self._tasks = asyncio.TaskGroup()
        self._working: set[asyncio.Task[None]] = set()
        self._generating: dict[str, asyncio.Task[None]] = {}

    async def run(self, drain: Drain) -> None:
        """Until the client leaves, its time is up, or the server drains and nothing is being answered."""
        try:
            async with self._tasks:
                self._session.open(int(time.time() + self._context.settings.websocket_max_s))
                self._do_all()
                draining = self._tasks.create_task(self._end_when_drained(drain))
                async for event in self._socket:
                    await self._take(event)
                for task in (draining, *self._working):
                    task.cancel()
        except BaseExceptionGroup as group:  # of one error, which has ended the other tasks
            raise group.exceptions[0] from None

    async def _take(self, event: ClientEvent) -> None:
        try:
            if isinstance(event, AppendAudio):
                self._session.on_heard(await self._hear(event))
            else:
                self._session.on_event(event)
        except AntiphonError as error:
            self._socket.tell(error, event)
        self._do_all()

    async def _hear(self, event: AppendAudio) -> list[TurnBorder]:
        self._session.check_hears()
        if len(event.audio) > _MUCH_AUDIO_BYTES:
            return await asyncio.to_thread(lambda: self._ears.append(base64_bytes(event.audio, "audio")))
        return self._ears.append(base64_bytes(event.audio, "audio"))

    async def _end_when_drained(self, drain: Drain) -> None:
        await drain.begun.wait()
        while self._working:
            await asyncio.wait(self._working)
        drain.check()

    def _do_all(self) -> None:
        for effect in self._session.take():
            self._do(effect)

    def _do(self, effect: Effect) -> None:
        match effect:
            case Say(event=event):
                self._socket.send(event)
            case Generate():
                self._generating[effect.response_id] = self._start(self._generate(effect))
            case Stop(response_id=response_id):
                if (task := self._generating.pop(response_id, None)) is not None:
                    task.cancel()
            case WriteDown():
                self._start(self._write_down(effect))
            case _:
                assert_never(effect)

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._tasks.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return task

    async def _generate(self, effect: Generate) -> None:
        request_id, clock, session = self._new_request("response"), self._clock.another(), self._session
        clock.begin("chat")
        submit = self._context.client.submit
        text_stage, end = self._context.client.pipeline.task("chat").text_stage, OutputEnd()
        try:
            async with await submit(effect.chat, request_id=request_id, client=self._client) as stream:
                async for message in stream:
                    await self._socket.room()
                    match message.output:
                        case TextDelta() as delta:
                            clock.saw_text()
                            session.on_output(effect.response_id, delta)
                            self._do_all()
                        case AudioChunk() as chunk:
                            clock.saw_audio(chunk)
                            session.on_output(effect.response_id, chunk)
                            self._do_all()
                            clock.sent_audio()
                        case OutputEnd() as last if message.stage == text_stage:
                            end = last
                        case _:
                            pass  # another stage's end
            clock.complete(end.usage.num_output_tokens)
            session.on_end(effect.response_id, end)
            clock.last_byte()
        except AntiphonError as error:
            self._log_failure(request_id, error)
            session.on_failed(effect.response_id, error)
        self._do_all()
        self._generating.pop(effect.response_id, None)

    async def _write_down(self, effect: WriteDown) -> None:
        request_id, words, submit = self._new_request("transcript"), [], self._context.client.submit
        caller = self._client
        try:
            async with await submit(effect.speech, request_id=request_id, is_whole=True, client=caller) as stream:
                async for message in stream:
                    if isinstance(message.output, Segment):
                        words.append(message.output.text.strip())
            duration_s = len(effect.speech.audio) / HEARING_RATE
            self._session.on_transcript(effect.number, " ".join(words).strip(), duration_s)
        except AntiphonError as error:
            self._log_failure(request_id, error)
            self._session.on_transcript_failed(effect.number, error)
        self._do_all()

    def _log_failure(self, request_id: RequestId, error: AntiphonError) -> None:
        if error.http_status >= 500:
            _log.warning("req=%s failed in the session of req=%s: %s", request_id, self._request_id, error.message)

    def _new_request(self, what: str) -> RequestId:
        request_id = new_request_id()
        _log.info("req=%s is a %s in the session of req=%s", request_id, what, self._request_id)
        return request_id
