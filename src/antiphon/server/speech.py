"""POST /v1/audio/speech: text in, one continuous audio out, as a file's bytes or as events.

In: a SpeechRequest. Out: a streamed response that starts with the first audio.
Does not know: voices, stages.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from antiphon.clauses import parts_of
from antiphon.config.pipeline import PipelineSpec
from antiphon.errors import UnknownRequestError
from antiphon.messages.client import Usage
from antiphon.server.audio_encode import AudioFormat
from antiphon.server.callers import client_of
from antiphon.server.context import ServerContext
from antiphon.server.edge import RequestIds, clock_of, request_ids_of
from antiphon.server.http_errors import json_response
from antiphon.server.models import check_language
from antiphon.server.outcomes import usage_of
from antiphon.server.request_clock import RequestClock
from antiphon.server.response_audio import ResponseAudio
from antiphon.server.schema import SpeechRequest, SpokenBody
from antiphon.server.spoken_file import spoken_file
from antiphon.server.spoken_parts import Mark, SpokenParts
from antiphon.server.sse import HOLE, Base64Pieces, EventForm, event, event_stream
from antiphon.server.streaming import StreamedResponse

_PATH = "/v1/audio/speech"
_PCM_RATE = 24_000
_DELTA = EventForm({"type": "speech.audio.delta", "audio": HOLE})


def speech_router(context: ServerContext) -> APIRouter:
    """POST /v1/audio/speech, GET /v1/audio/speech/{request_id}."""
    router = APIRouter()

    @router.post(_PATH, summary="Text to speech", response_class=Response)
    async def create_speech(body: SpeechRequest, request: Request) -> Response:
        context.catalogue.check(body.model)
        check_spoken(body, context.client.pipeline)
        ids = request_ids_of(request)
        clock = clock_of(request)
        clock.begin("speech")
        pieces = _speak(context, body, ids, client_of(request), clock)
        if body.as_events:
            return event_stream(_speech_events(pieces), ids.own)
        content_type = body.response_format.content_type(sample_rate_of(body, context.client.pipeline))
        headers = {"Link": f'<{_PATH}/{ids.shown}>; rel="status"'}
        return StreamedResponse(_only_audio(pieces), media_type=content_type, headers=headers)

    @router.get(f"{_PATH}/{{request_id}}", summary="How a speech request went, by its x-request-id")
    async def get_outcome(
        request_id: Annotated[str, Path(description="The `x-request-id` that the speech request was answered with.")],
    ) -> Response:
        outcome = await asyncio.to_thread(context.outcomes.find, request_id)
        if outcome is None:
            raise UnknownRequestError(
                f"no speech request {request_id[:128]!r} is known here; only the last ones are, for an hour",
                param="request_id",
            )
        return json_response(outcome.answer)

    return router


def check_spoken(body: SpokenBody, pipeline: PipelineSpec) -> None:
    """InvalidRequestError for a voice that is not there, a language that it does not speak, a rate of no such file."""
    check_language(pipeline.voices, body.voice, body.language)
    if body.sample_rate is not None:
        body.response_format.check_holds(body.sample_rate)


def sample_rate_of(body: SpokenBody, pipeline: PipelineSpec) -> int:
    """The rate of the answer: what was asked for, else the pipeline's; clients take pcm for 24,000 Hz unasked."""
    unasked = _PCM_RATE if body.response_format is AudioFormat.PCM else pipeline.sample_rate
    return body.sample_rate or unasked


def _parts_of(body: SpeechRequest, context: ServerContext) -> list[str]:
    """The texts of the requests that speak `input` one after the other. More of it at a time if it is spoken faster."""
    max_chars = int(context.client.pipeline.task("speech").chars_per_request * body.speed)
    if not 0 < max_chars < len(body.input) <= context.settings.max_text_chars:
        return [body.input]
    return parts_of(body.input, max_chars) or [body.input]


async def _speak(
    context: ServerContext, body: SpeechRequest, ids: RequestIds, client: str, clock: RequestClock
) -> AsyncGenerator[bytes | Usage, None]:
    """The bytes of one file as they get ready, none of them empty, then what was counted."""
    sample_rate = sample_rate_of(body, context.client.pipeline)
    audio = ResponseAudio(body.response_format, ids.own, context.client.trace, sample_rate)
    texts = _parts_of(body, context)
    parts = SpokenParts(context.client, body.speech(""), ids.own, caller=client, began_s=time.monotonic())
    with context.outcomes.following(ids) as made:
        parts.add(*texts, Mark.END)
        try:
            async with aclosing(spoken_file(parts, audio, clock)) as pieces:
                async for piece in pieces:
                    assert isinstance(piece, bytes), "nothing was flushed"
                    yield piece
        finally:
            made.duration_s, made.usage = audio.duration_s, parts.usage
        yield made.usage


async def _only_audio(pieces: AsyncGenerator[bytes | Usage, None]) -> AsyncGenerator[bytes, None]:
    try:
        async for piece in pieces:
            if isinstance(piece, bytes):
                yield piece
    finally:
        await pieces.aclose()


async def _speech_events(pieces: AsyncGenerator[bytes | Usage, None]) -> AsyncGenerator[bytes, None]:
    """speech.audio.delta for every piece of the file, then speech.audio.done."""
    joiner = Base64Pieces()
    try:
        async for piece in pieces:
            if isinstance(piece, bytes):
                if encoded := joiner.encode(piece):
                    yield _DELTA.fill(encoded)
                continue
            if encoded := joiner.finish():
                yield _DELTA.fill(encoded)
            yield event({"type": "speech.audio.done", "usage": usage_of(piece)})
    finally:
        await pieces.aclose()
