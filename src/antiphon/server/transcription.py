"""POST /v1/audio/transcriptions: an audio file in, its words out.

In: a multipart form. Out: json, verbose_json, plain text or subtitles.
Does not know: whisper, languages, stages.
"""

import asyncio
from enum import StrEnum
from typing import Annotated, assert_never

from fastapi import APIRouter, File, Form, Request, UploadFile
from starlette.responses import PlainTextResponse, Response

from antiphon.errors import InvalidRequestError
from antiphon.ids import RequestId
from antiphon.messages.client import Segment
from antiphon.messages.tasks import TranscriptionInput
from antiphon.server.audio_decode import decode_audio
from antiphon.server.callers import client_of
from antiphon.server.context import ServerContext
from antiphon.server.edge import clock_of, request_id_of
from antiphon.server.http_errors import json_response
from antiphon.server.request_clock import RequestClock
from antiphon.server.streaming import run_until_disconnect

_SAMPLE_RATE = 16_000


class TranscriptFormat(StrEnum):
    """`response_format` of the transcription API."""

    JSON = "json"
    TEXT = "text"
    VERBOSE_JSON = "verbose_json"
    SRT = "srt"
    VTT = "vtt"


def transcription_router(context: ServerContext) -> APIRouter:
    """POST /v1/audio/transcriptions."""
    router = APIRouter()

    @router.post("/v1/audio/transcriptions", summary="Speech to text", response_class=Response)
    async def create_transcription(
        request: Request,
        file: Annotated[UploadFile, File(description="The audio file, in any usual format.")],
        model: Annotated[str, Form(description="A name from GET /v1/models.")],
        language: Annotated[str, Form(description="Language of the speech, e.g. `en`; default: detected.")] = "",
        prompt: Annotated[str, Form(description="Text before this audio, for names and style.")] = "",
        response_format: Annotated[TranscriptFormat, Form(description="Shape of the answer.")] = TranscriptFormat.JSON,
        temperature: Annotated[float, Form(ge=0, le=1, allow_inf_nan=False, description="0 is greedy.")] = 0.0,
        granularities: Annotated[
            list[str], Form(alias="timestamp_granularities[]", description="Only `segment` is served.")
        ] = [],  # noqa: B006 (FastAPI copies it)
    ) -> Response:
        context.catalogue.check(model)
        _check_granularities(granularities)
        data = await file.read()

        async def transcribe() -> Response:
            audio = await asyncio.to_thread(decode_audio, data, max_duration_s=context.settings.max_audio_s)
            speech = TranscriptionInput(audio=audio, language=language, prompt=prompt, temperature=temperature)
            clock = clock_of(request)
            clock.begin("transcription")
            segments = await _segments(context, speech, request_id_of(request), client_of(request), clock)
            return _answer(segments, len(audio) / _SAMPLE_RATE, language, response_format)

        return await run_until_disconnect(request.receive, transcribe())

    return router


def _check_granularities(granularities: list[str]) -> None:
    for name in granularities:
        if name != "segment":
            param = "timestamp_granularities[]"
            raise InvalidRequestError(f"`{param}`: only segment is served, got {name[:80]!r}", param=param)


async def _segments(
    context: ServerContext, speech: TranscriptionInput, request_id: RequestId, client: str, clock: RequestClock
) -> list[Segment]:
    segments: list[Segment] = []
    async with await context.client.submit(speech, request_id=request_id, is_whole=True, client=client) as stream:
        async for message in stream:
            if isinstance(message.output, Segment):
                segments.append(message.output)
    clock.complete()
    return segments


def _answer(segments: list[Segment], duration_s: float, language: str, format: TranscriptFormat) -> Response:
    text = " ".join(segment.text.strip() for segment in segments)
    usage = {"type": "duration", "seconds": round(duration_s, 3)}
    match format:
        case TranscriptFormat.JSON:
            return json_response({"text": text, "usage": usage})
        case TranscriptFormat.TEXT:
            return PlainTextResponse(text + "\n")
        case TranscriptFormat.VERBOSE_JSON:
            spoken = next((segment.language for segment in segments if segment.language), language)
            rows = [_segment_row(index, segment) for index, segment in enumerate(segments)]
            return json_response(
                {
                    "task": "transcribe",
                    "language": spoken,
                    "duration": round(duration_s, 3),
                    "text": text,
                    "segments": rows,
                    "usage": usage,
                }
            )
        case TranscriptFormat.SRT:
            return PlainTextResponse(_srt(segments), media_type="application/x-subrip")
        case TranscriptFormat.VTT:
            return PlainTextResponse(_vtt(segments), media_type="text/vtt")
        case _:
            assert_never(format)


def _segment_row(index: int, segment: Segment) -> dict[str, int | float | str]:
    """What is known of a segment; OpenAI's log probabilities are not among it."""
    return {
        "id": index,
        "start": round(segment.start_s, 3),
        "end": round(segment.end_s, 3),
        "text": segment.text.strip(),
    }


def _srt(segments: list[Segment]) -> str:
    """SubRip: numbered blocks, a comma before the milliseconds."""
    return "\n".join(
        f"{number}\n{_clock(s.start_s, ',')} --> {_clock(s.end_s, ',')}\n{s.text.strip()}\n"
        for number, s in enumerate(segments, start=1)
    )


def _vtt(segments: list[Segment]) -> str:
    """WebVTT: a head line, then blocks, a point before the milliseconds."""
    blocks = (f"{_clock(s.start_s, '.')} --> {_clock(s.end_s, '.')}\n{s.text.strip()}\n" for s in segments)
    return "\n".join(["WEBVTT\n", *blocks])


def _clock(seconds: float, mark: str) -> str:
    """`01:02:03,450`."""
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}{mark}{rest % 1000:03d}"
