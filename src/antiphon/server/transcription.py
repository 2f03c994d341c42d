"""POST /v1/audio/transcriptions and /v1/audio/translations: an audio file in, its words out.

In: a multipart form. Out: a transcript in one of its shapes, or events as it is heard.
Does not know: whisper, languages, stages.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, File, Form, Request, UploadFile
from starlette.responses import Response

from antiphon.client.output_stream import OutputStream
from antiphon.errors import InvalidRequestError
from antiphon.messages.client import Segment
from antiphon.messages.tasks import TranscriptionInput
from antiphon.server.audio_decode import decode_audio
from antiphon.server.callers import client_of
from antiphon.server.context import ServerContext
from antiphon.server.edge import clock_of, request_id_of
from antiphon.server.models import check_heard_language
from antiphon.server.sse import event, event_stream
from antiphon.server.streaming import run_until_disconnect
from antiphon.server.transcript import Granularity, Transcript, TranscriptFormat, joined

_SAMPLE_RATE = 16_000
_GRANULARITIES = "timestamp_granularities[]"
_STREAMED = (TranscriptFormat.JSON, TranscriptFormat.TEXT)

_File = Annotated[UploadFile, File(description="The audio file, in any usual format.")]
_Model = Annotated[str, Form(description="A name from GET /v1/models.")]
_Prompt = Annotated[str, Form(description="Text before this audio, for names and style.")]
_Format = Annotated[TranscriptFormat, Form(description="Shape of the answer.")]
_Temperature = Annotated[float, Form(ge=0, le=1, allow_inf_nan=False, description="0 is greedy.")]
_Stream = Annotated[bool, Form(description="True: events with the text as it is heard; for `json` and `text`.")]


@dataclass(frozen=True)
class _Wanted:
    """The transcript that is asked for."""

    task: str
    format: TranscriptFormat
    language: str
    prompt: str
    temperature: float
    granularities: frozenset[Granularity] = frozenset({Granularity.SEGMENT})
    stream: bool = False

    def check(self) -> None:
        """InvalidRequestError for wishes that do not go together."""
        if self.granularities != {Granularity.SEGMENT} and self.format is not TranscriptFormat.VERBOSE_JSON:
            raise InvalidRequestError(
                f"`{_GRANULARITIES}`: only `response_format: verbose_json` tells words' times", param=_GRANULARITIES
            )
        if self.stream and self.format not in _STREAMED:
            raise InvalidRequestError(
                f"`stream`: a transcript in {self.format.value} cannot be streamed; ask for json or text",
                param="stream",
            )

    def transcript(self, duration_s: float, segments: list[Segment]) -> Transcript:
        """What has been heard."""
        return Transcript(self.task, self.language, duration_s, segments)


def transcription_router(context: ServerContext) -> APIRouter:
    """POST /v1/audio/transcriptions, /v1/audio/translations."""
    router = APIRouter()

    @router.post("/v1/audio/transcriptions", summary="Speech to text", response_class=Response)
    async def create_transcription(
        request: Request,
        file: _File,
        model: _Model,
        language: Annotated[str, Form(description="Language of the speech, e.g. `en`; default: detected.")] = "",
        prompt: _Prompt = "",
        response_format: _Format = TranscriptFormat.JSON,
        temperature: _Temperature = 0.0,
        granularities: Annotated[
            list[Granularity],
            Form(alias=_GRANULARITIES, description="What `verbose_json` tells the times of; default: `segment`."),
        ] = [],  # noqa: B006 (FastAPI copies it)
        include: Annotated[
            list[str], Form(alias="include[]", max_length=0, description="Not served: log probabilities.")
        ] = [],  # noqa: B006
        stream: _Stream = False,
    ) -> Response:
        context.catalogue.check(model)
        check_heard_language(context.catalogue.heard_languages, language, "language")
        timed = frozenset(granularities or [Granularity.SEGMENT])
        wanted = _Wanted("transcribe", response_format, language, prompt, temperature, timed, stream)
        return await _answer(context, request, wanted, file)

    @router.post("/v1/audio/translations", summary="Speech in any language to English text", response_class=Response)
    async def create_translation(
        request: Request,
        file: _File,
        model: _Model,
        prompt: _Prompt = "",
        response_format: _Format = TranscriptFormat.JSON,
        temperature: _Temperature = 0.0,
    ) -> Response:
        context.catalogue.check(model)
        return await _answer(context, request, _Wanted("translate", response_format, "", prompt, temperature), file)

    return router


async def _answer(context: ServerContext, request: Request, wanted: _Wanted, file: UploadFile) -> Response:
    wanted.check()
    data = await file.read()
    if wanted.stream:
        return event_stream(_events(context, request, wanted, data), request_id_of(request))
    return await run_until_disconnect(request.receive, _whole(context, request, wanted, data))


async def _submit(context: ServerContext, request: Request, wanted: _Wanted, data: bytes) -> tuple[OutputStream, float]:
    """The stream of what is heard, and the seconds of audio."""
    audio = await asyncio.to_thread(decode_audio, data, max_duration_s=context.settings.max_audio_s)
    clock_of(request).begin("transcription")
    speech = TranscriptionInput(
        audio,
        wanted.language,
        wanted.prompt,
        wanted.temperature,
        times_words=Granularity.WORD in wanted.granularities,
        translates=wanted.task == "translate",
    )
    stream = await context.client.submit(
        speech, request_id=request_id_of(request), is_whole=not wanted.stream, client=client_of(request)
    )
    return stream, len(audio) / _SAMPLE_RATE


async def _whole(context: ServerContext, request: Request, wanted: _Wanted, data: bytes) -> Response:
    stream, duration_s = await _submit(context, request, wanted, data)
    async with stream:
        segments = [message.output async for message in stream if isinstance(message.output, Segment)]
    clock_of(request).complete()
    return wanted.transcript(duration_s, segments).response(wanted.format, wanted.granularities)


async def _events(
    context: ServerContext, request: Request, wanted: _Wanted, data: bytes
) -> AsyncGenerator[bytes, None]:
    """A transcript.text.delta for each segment, transcript.text.done at the end."""
    segments: list[Segment] = []
    stream, duration_s = await _submit(context, request, wanted, data)
    async with stream:
        async for message in stream:
            if isinstance(message.output, Segment) and (text := joined([message.output])):
                clock_of(request).saw_text()
                yield event({"type": "transcript.text.delta", "delta": f" {text}" if segments else text})
                segments.append(message.output)
    clock_of(request).complete()
    whole = wanted.transcript(duration_s, segments)
    yield event({"type": "transcript.text.done", "text": whole.text, "usage": whole.usage})
