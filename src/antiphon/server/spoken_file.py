"""One file of the parts of one text, as it gets ready.

In: SpokenParts, and what encodes their audio. Out: the file's bytes, with the flushes between them.
Does not know: HTTP, WebSockets, where a text is cut.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from antiphon.server.request_clock import RequestClock
from antiphon.server.response_audio import ResponseAudio
from antiphon.server.spoken_parts import Mark, SpokenParts


async def spoken_file(
    parts: SpokenParts, audio: ResponseAudio, clock: RequestClock
) -> AsyncGenerator[bytes | Mark, None]:
    """Bytes, never none, and flushes, until the file is complete. Closing it aborts what is not spoken.

    Raises the AntiphonError of the part that failed, or `parts.unspeakable` if nothing was spoken.
    """
    async with aclosing(parts.give()) as given:
        async for said in given:
            if isinstance(said, Mark):
                yield said
                continue
            clock.saw_audio(said)
            if piece := await audio.encode(said):
                clock.sent_audio()
                yield piece
    if parts.unspeakable is not None and not audio.duration_s:
        raise parts.unspeakable
    rest = await audio.finish()
    if rest:
        clock.sent_audio()
    clock.complete()
    if rest:
        yield rest
