"""Server-sent events: JSON values as `data:` lines.

In: plain dicts, or the strings that an event of a known form differs in. Out: event bytes; failures after the first
event as one last error event.
Does not know: what the events are about.
"""

import base64
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from uuid import uuid4

import msgspec

from antiphon.errors import AntiphonError
from antiphon.ids import RequestId
from antiphon.server.http_errors import envelope, internal_envelope
from antiphon.server.streaming import StreamedResponse

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"
"""The last event of a chat stream that has not failed."""
HOLE = f"hole-{uuid4().hex}"
"""Where an EventForm has its string; nothing that a client sends is equal to it."""
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def event(data: object) -> bytes:
    """One event of any plain value."""
    return b"data: " + _encode(data) + b"\n\n"


class EventForm:
    """Owns an event that is sent many times with another string in it: everything else is encoded once."""

    def __init__(self, data: object) -> None:
        self._around = event(data).split(_encode(HOLE))

    def fill(self, text: str) -> bytes:
        """The event with `text` in every place that was HOLE."""
        return _encode(text).join(self._around)


def error_event(error: dict[str, dict[str, str | None]]) -> bytes:
    """An error envelope as an event of type `error`, for clients that listen by type and for those that read data."""
    return b"event: error\ndata: " + _encode({"type": "error", **error}) + b"\n\n"


def event_stream(events: AsyncGenerator[bytes, None], request_id: RequestId) -> StreamedResponse:
    """The response that sends `events`."""
    pieces = _with_error_event(events, request_id)
    return StreamedResponse(pieces, media_type="text/event-stream; charset=utf-8", headers=_HEADERS)


async def _with_error_event(events: AsyncGenerator[bytes, None], request_id: RequestId) -> AsyncGenerator[bytes, None]:
    """`events`; a failure before the first one is raised, a later one is the last event."""
    started = False
    async with aclosing(events):
        try:
            async for piece in events:
                started = True
                yield piece
        except AntiphonError as error:
            if not started:
                raise
            _log.warning("req=%s failed in mid-stream: %s", request_id, error.message)
            yield error_event(envelope(error))
        except Exception:  # the edge of an HTTP handler: the status is sent, an event is the only way to tell
            if not started:
                raise
            _log.exception("req=%s failed in mid-stream inside the server", request_id)
            yield error_event(internal_envelope(request_id))


class Base64Pieces:
    """Owns the few bytes that do not yet fill a group; joining all pieces gives valid base64 of all bytes.

    Clients join what they get, before or after decoding: so no piece but the last has padding, and none ends inside
    a 16-bit sample (pieces are multiples of 6 bytes).
    """

    _GROUP_BYTES = 6

    def __init__(self) -> None:
        self._rest = b""

    def encode(self, data: bytes) -> str:
        """Base64 of what is complete, maybe ""."""
        joined = self._rest + data
        end = len(joined) - len(joined) % self._GROUP_BYTES
        self._rest = joined[end:]
        return base64.b64encode(joined[:end]).decode()

    def finish(self) -> str:
        """Base64 of the rest, maybe ""."""
        rest, self._rest = self._rest, b""
        return base64.b64encode(rest).decode()
