"""POST /v1/chat/completions: a conversation in, text and speech out, whole or streamed.

In: a ChatRequest. Out: one completion object, or its chunks as events while the stages work.
Does not know: prompts, tokens, stages other than which one gives the text.
"""

import asyncio
from collections.abc import AsyncGenerator

from fastapi import APIRouter, Request
from starlette.responses import Response

from antiphon.server.answer_streams import AnswerStreams
from antiphon.server.callers import client_of
from antiphon.server.chat_answer import AnswerHead, completion, usage_event
from antiphon.server.chat_choice import StreamedChoice, WholeChoice
from antiphon.server.chat_input import chat_input, has_media
from antiphon.server.chat_schema import ChatRequest
from antiphon.server.context import ServerContext
from antiphon.server.edge import clock_of, request_id_of
from antiphon.server.http_errors import json_response
from antiphon.server.json_object import Json
from antiphon.server.request_clock import RequestClock
from antiphon.server.sse import DONE, event_stream
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


async def _submit(context: ServerContext, body: ChatRequest, head: AnswerHead, *, is_whole: bool) -> AnswerStreams:
    taken = frozenset(context.client.pipeline.task("chat").entries)
    if has_media(body):
        chat = await asyncio.to_thread(chat_input, body, context.settings, taken)
    else:
        chat = chat_input(body, context.settings, taken)
    return await AnswerStreams.submit(
        context.client, chat, body.n, head.request_id, is_whole=is_whole, caller=head.client
    )


async def _whole(context: ServerContext, body: ChatRequest, head: AnswerHead, clock: RequestClock) -> Json:
    text_stage = context.client.pipeline.task("chat").text_stage
    choices = [WholeChoice(index, body, head, text_stage) for index in range(body.n)]
    async with await _submit(context, body, head, is_whole=True) as streams:
        while streams.num_open:
            for index, messages in await streams.take():
                choices[index].add(messages, clock if index == 0 else None)
    rows = [await choice.row() for choice in choices]
    clock.complete(choices[0].end.usage.num_output_tokens)
    return completion(head, rows, [choice.end for choice in choices])


async def _events(
    context: ServerContext, body: ChatRequest, head: AnswerHead, clock: RequestClock
) -> AsyncGenerator[bytes, None]:
    """Roles, deltas of text and audio as they come, the finish reasons, the usage if asked for, [DONE].

    Events of what has come at once leave at once. The roles are held back until a stage has said something: until
    then a failure can still be an HTTP error. The clock is that of the first answer.
    """
    text_stage, trace = context.client.pipeline.task("chat").text_stage, context.client.trace
    choices = [
        StreamedChoice(index, body, head, text_stage, clock if index == 0 else None, trace) for index in range(body.n)
    ]
    written = [choice.writer.role() for choice in choices]
    async with await _submit(context, body, head, is_whole=False) as streams:
        while streams.num_open:
            for index, messages in await streams.take():
                if messages:
                    await choices[index].write(messages, written)
                else:
                    await choices[index].finish(written)
            if written and streams.num_open:
                yield b"".join(written)
                written.clear()
    clock.complete(choices[0].end.usage.num_output_tokens)
    if body.stream_options.include_usage:
        written.append(usage_event(head, [choice.end for choice in choices]))
    yield b"".join([*written, DONE])
