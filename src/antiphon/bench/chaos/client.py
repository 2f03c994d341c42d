"""The clients of a chaos run: they ask, read, pause, leave, and tell how it ended, whatever happens to the server.

In: an Ask, and a door to a server. Out: an Outcome within a deadline. Does not know: processes, other requests.
"""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from antiphon.bench.chaos.actions import Ask, Form, Manner, text_of
from antiphon.bench.chaos.answer import CONNECTION_LOST, Answer, End, Expected, Outcome
from antiphon.bench.load import Body, ChunkedBody
from antiphon.client.engine_client import EngineClient
from antiphon.client.output_stream import OutputStream
from antiphon.errors import AntiphonError
from antiphon.messages.client import AudioChunk, TextDelta
from antiphon.messages.params import SamplingParams
from antiphon.messages.tasks import ChatInput, ChatMessage, SpeechInput, TaskInput

_MAX_TOKENS = 48
"""Of an answer that a network makes; simulated stages give the text back."""
_READ_BYTES = 4096
_SMALL_BUFFER_BYTES = 8192


class _Left(Exception):
    """The client has gone, as its manner says."""


@dataclass(frozen=True)
class HttpDoor:
    """Where the api-servers listen."""

    host: str
    port: int
    model: str

    async def ask(self, ask: Ask, answer: Answer) -> None:
        """Send the request and read its answer."""
        payload = msgspec.json.encode(_body(self.model, ask))
        path = "/v1/chat/completions" if ask.form.is_chat else "/v1/audio/speech"
        head = f"POST {path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
        request = f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload
        reader, writer = await self._connect(ask.manner)
        try:
            await _send(writer, request, ask.manner)
            await _read_answer(reader, ask, answer)
        finally:
            _hang_up(writer, ask)

    async def _connect(self, manner: Manner) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A client that pauses has small buffers, so that the server notices."""
        connection = socket.socket()
        connection.setblocking(False)
        if manner is Manner.PAUSE:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER_BYTES)
        try:
            await asyncio.get_running_loop().sock_connect(connection, (self.host, self.port))
            return await asyncio.open_connection(sock=connection, limit=_SMALL_BUFFER_BYTES)
        except BaseException:
            connection.close()
            raise


@dataclass(frozen=True)
class LibraryDoor:
    """An engine client of this process."""

    client: EngineClient

    async def ask(self, ask: Ask, answer: Answer) -> None:
        """Submit the request and take its messages."""
        submitting = asyncio.ensure_future(self.client.submit(_task_input(ask)))
        if ask.manner is Manner.LEAVE_WHILE_SENDING:
            await asyncio.sleep(0)
            submitting.cancel()
        try:
            stream = await submitting
        except asyncio.CancelledError:
            raise _Left from None
        async with stream:
            if ask.manner is not Manner.LEAVE_AT_ONCE:
                await self._read(stream, ask, answer)
                return
        await stream.aclose()  # twice, which changes nothing
        raise _Left

    async def _read(self, stream: OutputStream, ask: Ask, answer: Answer) -> None:
        has_paused = False
        async for message in stream:
            match message.output:
                case TextDelta(text=text):
                    answer.text += text
                case AudioChunk(pcm=pcm):
                    answer.pcm += pcm
                case _:
                    continue
            if len(answer.text) + len(answer.pcm) >= ask.at_bytes:
                if ask.manner is Manner.LEAVE:
                    raise _Left
                if ask.manner is Manner.PAUSE and not has_paused:
                    has_paused = True
                    await asyncio.sleep(ask.pause_s)
        answer.is_complete = True


async def outcome_of(
    door: HttpDoor | LibraryDoor, ask: Ask, expected: Expected, clock: Callable[[], float], deadline_s: float
) -> Outcome:
    """Ask, and say how it ended; without an end in `deadline_s`, above every deadline of the server, it is lost."""
    answer, began_s = Answer(expected), clock()
    end, reason, message = await _end_of(door.ask(ask, answer), answer, deadline_s)
    num_bytes = len(answer.text) + len(answer.pcm)
    return Outcome(ask.number, end, reason, message, answer.is_wrong, num_bytes, began_s, clock())


async def _end_of(asking: Awaitable[None], answer: Answer, deadline_s: float) -> tuple[End, str, str]:
    try:
        async with asyncio.timeout(deadline_s):
            await asking
    except TimeoutError:
        return End.LOST, "no end", f"nothing more came within {deadline_s:g} s"
    except _Left:
        return End.ABORTED, "client left", ""
    except AntiphonError as error:
        return End.FAILED, error.code, error.message
    except (OSError, EOFError) as error:
        return End.FAILED, CONNECTION_LOST, f"{type(error).__name__}: {error}"
    if answer.error_code:
        return End.FAILED, answer.error_code, answer.error_message
    if not answer.is_complete:
        return End.FAILED, CONNECTION_LOST, "the answer was cut off"
    return End.FINISHED, "", ""


def _hang_up(writer: asyncio.StreamWriter, ask: Ask) -> None:
    """By a reset, or in good order."""
    connection: socket.socket | None = writer.get_extra_info("socket")
    if ask.number % 2 and connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _send(writer: asyncio.StreamWriter, request: bytes, manner: Manner) -> None:
    if manner is Manner.LEAVE_WHILE_SENDING:
        writer.write(request[: len(request) - 10])
        await writer.drain()
        await asyncio.sleep(0.05)
        raise _Left
    writer.write(request)
    await writer.drain()
    if manner is Manner.LEAVE_AT_ONCE:
        await asyncio.sleep(0.01)
        raise _Left


async def _read_answer(reader: asyncio.StreamReader, ask: Ask, answer: Answer) -> None:
    leaves_after_s = ask.pause_s / 4 if ask.manner is Manner.LEAVE and not ask.form.is_streamed else None
    try:
        async with asyncio.timeout(leaves_after_s):
            headers = (await reader.readuntil(b"\r\n\r\n")).lower()
    except TimeoutError:
        raise _Left from None
    is_good = headers.startswith(b"http/1.1 200")
    if b"transfer-encoding: chunked" in headers:
        return await _read_stream(reader, ask, answer)
    length = int(headers.partition(b"content-length:")[2].split(b"\r\n")[0])
    body = await reader.readexactly(length)
    if is_good:
        answer.read_body(ask.form, body, ended=True)
    else:
        answer.read_error(body)


async def _read_stream(reader: asyncio.StreamReader, ask: Ask, answer: Answer) -> None:
    """Read, pause and leave as the ask says; what has come is in the answer, also when the connection breaks."""
    chunked, has_paused = ChunkedBody(), False
    try:
        while data := await reader.read(_READ_BYTES):
            chunked.feed(data)
            if len(chunked.body) >= ask.at_bytes:
                if ask.manner is Manner.LEAVE:
                    raise _Left
                if ask.manner is Manner.PAUSE and not has_paused:
                    has_paused = True
                    await asyncio.sleep(ask.pause_s)
    finally:
        answer.read_body(ask.form, bytes(chunked.body), ended=chunked.ended)


def _body(model: str, ask: Ask) -> Body:
    text = text_of(ask)
    if not ask.form.is_chat:
        speech: Body = {"model": model, "input": text, "response_format": "pcm"}
        return {**speech, "stream_format": "sse"} if ask.form is Form.SPEECH_EVENTS else speech
    chat: Body = {"model": model, "messages": [{"role": "user", "content": text}], "stream": ask.form.is_streamed}
    chat["max_tokens"] = _MAX_TOKENS
    return {**chat, "modalities": ["text", "audio"], "audio": {"format": "pcm16"}} if ask.form.has_audio else chat


def _task_input(ask: Ask) -> TaskInput:
    text = text_of(ask)
    if not ask.form.is_chat:
        return SpeechInput(text)
    sampling = SamplingParams(max_tokens=_MAX_TOKENS)
    return ChatInput((ChatMessage("user", text),), sampling, audio_out=ask.form.has_audio)
