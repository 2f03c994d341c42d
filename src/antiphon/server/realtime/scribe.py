"""The spoken parts of a session whose words are on their way, and how many there may be.

In: items with sound; word that a part is done. Out: what is to be written down, and the events that tell the words.
Does not know: conversations, responses, who writes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from antiphon.errors import AntiphonError, OverloadedError
from antiphon.messages.tasks import TranscriptionInput
from antiphon.server.http_errors import envelope
from antiphon.server.json_object import Json
from antiphon.server.realtime.conversation import Heard, Item
from antiphon.server.realtime.effects import WriteDown
from antiphon.server.realtime.session_config import Transcription
from antiphon.server.realtime.wire_audio import HEARING_RATE

_MAX_PARTS = 16
_MAX_SAMPLES = 600 * HEARING_RATE
_KIND = "conversation.item.input_audio_transcription"


@dataclass(frozen=True)
class PartWritten:
    """A spoken part, and where it stands in its item."""

    item_id: str
    content_index: int
    part: Heard

    def completed(self, text: str, duration_s: float) -> Json:
        """The event with its words."""
        usage = {"type": "duration", "seconds": round(duration_s, 3)}
        return {**self._event("completed"), "transcript": text, "usage": usage}

    def failed(self, error: AntiphonError) -> Json:
        """The event that says why there are none."""
        return {**self._event("failed"), "error": envelope(error)["error"]}

    def _event(self, how: str) -> Json:
        return {"type": f"{_KIND}.{how}", "item_id": self.item_id, "content_index": self.content_index}


class Scribe:
    """Owns the parts whose words are on their way, by number: until they are done, also if their item is deleted."""

    def __init__(self) -> None:
        self._parts: dict[int, PartWritten] = {}
        self._num_begun = 0

    def check_room(self, num_more: int = 0) -> None:
        """OverloadedError if so much waits, with `num_more` parts, that more would only pile up."""
        num_waiting = len(self._parts) + num_more
        num_samples = sum(len(each.part.samples) for each in self._parts.values() if each.part.samples is not None)
        if num_waiting >= _MAX_PARTS or num_samples >= _MAX_SAMPLES:
            raise OverloadedError(f"{num_waiting} spoken turns are not written down yet; wait for some of them")

    def begin(self, item: Item, options: Transcription | None) -> Iterator[WriteDown]:
        """Its spoken parts that have sound and no words."""
        language, prompt = (options.language, options.prompt) if options is not None else ("", "")
        for index, part in enumerate(item.parts):
            if isinstance(part, Heard) and part.samples is not None and part.transcript is None:
                part.is_being_written = True
                self._num_begun += 1
                self._parts[self._num_begun] = PartWritten(item.id, index, part)
                yield WriteDown(self._num_begun, item.id, TranscriptionInput(part.samples, language, prompt))

    def finish(self, number: int) -> PartWritten:
        """Part `number` is done, with or without words."""
        done = self._parts.pop(number)
        done.part.is_being_written = False
        return done
