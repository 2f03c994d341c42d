"""The shapes of a transcript: json, verbose_json, plain text, subtitles.

In: segments. Out: a response. Does not know: whisper, requests, stages.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from starlette.responses import PlainTextResponse, Response

from antiphon.messages.client import Segment
from antiphon.server.http_errors import json_response
from antiphon.server.json_object import Json


class TranscriptFormat(StrEnum):
    """`response_format` of the transcription API."""

    JSON = "json"
    TEXT = "text"
    VERBOSE_JSON = "verbose_json"
    SRT = "srt"
    VTT = "vtt"


class Granularity(StrEnum):
    """What verbose_json tells the times of."""

    SEGMENT = "segment"
    WORD = "word"


@dataclass(frozen=True)
class Transcript:
    """A whole transcript. task: `transcribe` or `translate`. language: as asked for, where no segment tells it."""

    task: str
    language: str
    duration_s: float
    segments: Sequence[Segment]

    @property
    def text(self) -> str:
        """The words, in one line."""
        return joined(self.segments)

    @property
    def usage(self) -> Json:
        """What was heard, as OpenAI bills it."""
        return {"type": "duration", "seconds": round(self.duration_s, 3)}

    def response(self, format: TranscriptFormat, granularities: Iterable[Granularity]) -> Response:
        """The transcript in `format`; `granularities` are verbose_json's."""
        match format:
            case TranscriptFormat.JSON:
                return json_response({"text": self.text, "usage": self.usage})
            case TranscriptFormat.TEXT:
                return PlainTextResponse(self.text + "\n")
            case TranscriptFormat.VERBOSE_JSON:
                return json_response(self._verbose(frozenset(granularities)))
            case TranscriptFormat.SRT:
                return PlainTextResponse(_srt(self.segments), media_type="application/x-subrip")
            case TranscriptFormat.VTT:
                return PlainTextResponse(_vtt(self.segments), media_type="text/vtt")
            case _:
                assert_never(format)

    def _verbose(self, granularities: frozenset[Granularity]) -> Json:
        heard = next((segment.language for segment in self.segments if segment.language), self.language)
        rows: Json = {
            "task": self.task,
            "language": heard,
            "duration": round(self.duration_s, 3),
            "text": self.text,
            "usage": self.usage,
        }
        if Granularity.SEGMENT in granularities:
            rows["segments"] = [_segment_row(index, segment) for index, segment in enumerate(self.segments)]
        if Granularity.WORD in granularities:
            rows["words"] = [
                {"word": word.text.strip(), "start": round(word.start_s, 3), "end": round(word.end_s, 3)}
                for segment in self.segments
                for word in segment.words
            ]
        return rows


def joined(segments: Iterable[Segment]) -> str:
    """Their words in one line."""
    return " ".join(text for segment in segments if (text := segment.text.strip()))


def _segment_row(index: int, segment: Segment) -> Json:
    row: Json = {
        "id": index,
        "start": round(segment.start_s, 3),
        "end": round(segment.end_s, 3),
        "text": segment.text.strip(),
    }
    if (scores := segment.scores) is not None:
        row |= {
            "seek": scores.seek_frames,
            "tokens": scores.token_ids,
            "temperature": scores.temperature,
            "avg_logprob": scores.avg_logprob,
            "compression_ratio": scores.compression_ratio,
            "no_speech_prob": scores.no_speech_prob,
        }
    return row


def _srt(segments: Sequence[Segment]) -> str:
    """SubRip: numbered blocks, a comma before the milliseconds."""
    return "\n".join(
        f"{number}\n{_clock(s.start_s, ',')} --> {_clock(s.end_s, ',')}\n{s.text.strip()}\n"
        for number, s in enumerate(segments, start=1)
    )


def _vtt(segments: Sequence[Segment]) -> str:
    """WebVTT: a head line, then blocks, a point before the milliseconds."""
    blocks = (f"{_clock(s.start_s, '.')} --> {_clock(s.end_s, '.')}\n{s.text.strip()}\n" for s in segments)
    return "\n".join(["WEBVTT\n", *blocks])


def _clock(seconds: float, mark: str) -> str:
    """`01:02:03,450`."""
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}{mark}{rest % 1000:03d}"
