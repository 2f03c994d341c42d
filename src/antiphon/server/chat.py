"""POST /v1/chat/completions: a conversation in, text and speech out, whole or streamed.

In: a ChatRequest. Out: one completion object, or its chunks as events while the stages work.
Does not know: prompts, tokens, stages other than which one gives the text.
"""

import asyncio
from collections.abc import AsyncGenerator

from fastapi import APIRouter, Request
from starlette.responses import Response

from antiphon.client.output_stream import OutputStream
from antiphon.config.pipeline import Modality
from antiphon.messages.client import AudioChunk, OutputEnd, TextDelta
from antiphon.server.callers import client_of
from antiphon.server.chat_answer import AnswerHead, ChunkWriter, Json, completion
from antiphon.server.chat_input import chat_input, has_media
from antiphon.server.context import ServerContext
from antiphon.server.edge import clock_of, request_id_of
from antiphon.server.http_errors import json_response
from antiphon.server.request_clock import RequestClock
from antiphon.server.response_audio import ResponseAudio, encode_answer
from antiphon.server.schema import ChatRequest
from antiphon.server.sse import DONE, Base64Pieces, event_stream
from antiphon.server.streaming import run_until_disconnect


def chat_router(context: ServerContext) -> APIRouter:
    """POST /v1/chat/completions."""
    router = APIRouter()

    @router.post("/v1/chat/completions", summary="Chat, written and spoken", response_class=Response)
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        context.catalogue.check(body.model)
        head, clock = AnswerHead(request_id_of(request), body.model, client_of(request)), clock_of(request)
        clock.begin("chat")
        if body.stream:
            return event_stream(_events(context, body, head, clock), head.request_id)
        return json_response(await run_until_disconnect(request.receive, _whole(context, body, head, clock)))

    return router


async def _submit(context: ServerContext, body: ChatRequest, head: AnswerHead, *, is_whole: bool) -> OutputStream:
    taken = frozenset(context.client.pipeline.task("chat").entries)
    if has_media(body):
        conversation = await asyncio.to_thread(chat_input, body, context.settings, taken)
    else:
        conversation = chat_input(body, context.settings, taken)
    return await context.client.submit(conversation, request_id=head.request_id, is_whole=is_whole, client=head.client)


def _text_stage(context: ServerContext) -> str:
    """The stage whose end tells the finish reason and the usage."""
    return context.client.pipeline.task("chat").finals[Modality.TEXT]


async def _whole(context: ServerContext, body: ChatRequest, head: AnswerHead, clock: RequestClock) -> Json:
    text_stage = _text_stage(context)
    texts: list[str] = []
    chunks: list[AudioChunk] = []
    end = OutputEnd()
    async with await _submit(context, body, head, is_whole=True) as stream:
        async for message in stream:
            match message.output:
                case TextDelta(text=text):
                    texts.append(text)
                case AudioChunk() as chunk:
                    clock.saw_audio(chunk)
                    chunks.append(chunk)
                case OutputEnd() as last if message.stage == text_stage:
                    end = last
                case _:
                    pass  # another stage's end
    written = "".join(texts)
    audio = await encode_answer(chunks, body.audio_format, written) if body.audio_out else None
    clock.complete(end.usage.num_output_tokens)
    return completion(head, written, audio, end)


async def _events(
    context: ServerContext, body: ChatRequest, head: AnswerHead, clock: RequestClock
) -> AsyncGenerator[bytes, None]:
    """Role, deltas of text and audio as they come, the finish reason, the usage if asked for, [DONE].

    Events of what has come at once leave at once. The role is held back until a stage has said something: until
    then a failure can still be an HTTP error.
    """
    text_stage, end = _text_stage(context), OutputEnd()
    include_usage = body.stream_options.include_usage
    writer = ChunkWriter(head, audio_out=body.audio_out, include_usage=include_usage)
    audio = ResponseAudio(body.audio_format, head.request_id, context.client.trace)
    joiner = Base64Pieces()
    written = [writer.role()]
    async with await _submit(context, body, head, is_whole=False) as stream:
        while messages := await stream.take():
            for message in messages:
                match message.output:
                    case TextDelta(text=text):
                        clock.saw_text()
                        written.append(writer.text(text))
                    case AudioChunk() as chunk:
                        clock.saw_audio(chunk)
                        if encoded := joiner.encode(await audio.encode(chunk)):
                            clock.sent_audio()
                            written.append(writer.audio(encoded))
                    case OutputEnd() as last if message.stage == text_stage:
                        end = last
                    case _:
                        pass  # another stage's end
            if written:
                yield b"".join(written)
                written.clear()
        if body.audio_out:
            rest = joiner.encode(await audio.finish()) + joiner.finish()
            if rest:
                clock.sent_audio()
                written.append(writer.audio(rest))
            written.append(writer.audio_end())
    clock.complete(end.usage.num_output_tokens)
    written.append(writer.finish(end.finish_reason))
    if include_usage:
        written.append(writer.usage(end))
    yield b"".join([*written, DONE])
