"""What was said in a session, in order: written, heard and spoken parts, and what of it a model is told.

In: items as clients create them or responses speak them. Out: the items as OpenAI's JSON, chat messages.
Does not know: events, models, who may say what when.
"""

import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from antiphon.errors import InvalidRequestError
from antiphon.messages.tasks import ChatMessage, ChatPart, Sound
from antiphon.server.json_object import Json

_MAX_ITEMS = 256
_MAX_BYTES = 64 << 20
_MAX_PROMPT_CHARS = 12_000
_NO_ITEM = "item_not_found"
_CHARS_PER_MS = 0.015
"""How fast an unfinished answer is taken to be spoken: a calm speaker's 15 characters a second."""


def new_item_id() -> str:
    """A fresh id, e.g. `item_9f86d081884c7d65ab12`."""
    return f"item_{secrets.token_hex(10)}"


@dataclass
class Written:
    """Text of any role."""

    text: str


@dataclass
class Heard:
    """What a user said: its samples until they are not needed any more, its words once they are known.

    is_being_written: its words are on their way.
    """

    samples: np.ndarray | None
    transcript: str | None = None
    is_being_written: bool = False


@dataclass
class Spoken:
    """What an assistant says: the words made so far, and how much of their sound. is_whole: all of it was made."""

    transcript: str = ""
    num_ms: float = 0.0
    is_whole: bool = False

    def truncate(self, end_ms: int) -> None:
        """Keep the words of the first `end_ms`, by their share of the sound, up to the last whole word."""
        if end_ms > math.ceil(self.num_ms):  # a client counts whole ones
            raise InvalidRequestError(
                f"`audio_end_ms` is {end_ms}; this item has {self.num_ms:.0f} ms of audio", param="audio_end_ms"
            )
        per_ms = len(self.transcript) / self.num_ms if self.is_whole and self.num_ms else _CHARS_PER_MS
        end = int(end_ms * per_ms)
        if end < len(self.transcript):
            whole = self.transcript[:end]
            is_border = self.transcript[end].isspace() or whole[-1:].isspace()
            self.transcript = (whole if is_border else whole[: whole.rfind(" ") + 1]).rstrip()
        self.num_ms, self.is_whole = float(end_ms), True


Part = Written | Heard | Spoken


@dataclass
class Item:
    """One turn. role: user, assistant or system."""

    role: str
    parts: list[Part]
    id: str = field(default_factory=new_item_id)
    status: str = "completed"

    def as_json(self) -> Json:
        """The item as the GA shows it; sound that was said is not kept, its transcript is."""
        content = [self._part_json(part) for part in self.parts]
        return {
            "id": self.id,
            "object": "realtime.item",
            "type": "message",
            "status": self.status,
            "role": self.role,
            "content": content,
        }

    def heard(self) -> Iterator[Heard]:
        """Its spoken parts."""
        return (part for part in self.parts if isinstance(part, Heard))

    def num_chars(self) -> int:
        """Of its words, as far as they are known."""
        return sum(len(part) for part in map(_chat_part, self.parts) if isinstance(part, str))

    def size_bytes(self) -> int:
        """What it takes to keep it."""
        return sum(_size_bytes(part) for part in self.parts)

    def _part_json(self, part: Part) -> Json:
        match part:
            case Written(text=text):
                return {"type": "output_text" if self.role == "assistant" else "input_text", "text": text}
            case Heard(transcript=transcript):
                return {"type": "input_audio", "transcript": transcript}
            case Spoken(transcript=transcript):
                return {"type": "output_audio", "transcript": transcript}


def _size_bytes(part: Part) -> int:
    match part:
        case Written(text=text) | Spoken(transcript=text):
            return len(text)
        case Heard(samples=samples, transcript=transcript):
            return len(transcript or "") + (0 if samples is None else samples.nbytes)


class Conversation:
    """Owns the items of one session, at most 256 and 64 MiB of them: the oldest leave for new ones."""

    def __init__(self) -> None:
        self._items: list[Item] = []

    @property
    def items(self) -> Sequence[Item]:
        """Oldest first."""
        return self._items

    def add(self, item: Item, previous_id: str | None = None) -> str | None:
        """Behind the item called `previous_id` ("root": in front of all), else at the end; gives the one before it."""
        if any(other.id == item.id for other in self._items):
            raise InvalidRequestError(
                f"`item.id`: {item.id!r} is there already", param="item.id", code="item_create_duplicate_item_id"
            )
        place = len(self._items)
        if previous_id is not None:
            place = 0 if previous_id == "root" else self._place(previous_id, "previous_item_id") + 1
        self._items.insert(place, item)
        return self._items[place - 1].id if place else None

    def drop_oldest(self) -> list[str]:
        """The ids of items that had to leave, because there are too many; the newest stays."""
        num_bytes, num_kept = 0, 0
        for item in reversed(self._items):
            num_bytes += item.size_bytes()
            if num_kept and (num_kept == _MAX_ITEMS or num_bytes > _MAX_BYTES):
                break
            num_kept += 1
        dropped = self._items[: len(self._items) - num_kept]
        del self._items[: len(dropped)]
        return [item.id for item in dropped]

    def get(self, item_id: str, param: str = "item_id", code: str = _NO_ITEM) -> Item:
        """InvalidRequestError, naming `param`, if there is none."""
        return self._items[self._place(item_id, param, code)]

    def find(self, item_id: str) -> Item | None:
        """None if it is there no more."""
        return next((item for item in self._items if item.id == item_id), None)

    def delete(self, item_id: str) -> None:
        """InvalidRequestError if there is none."""
        del self._items[self._place(item_id, "item_id", "item_delete_invalid_item_id")]

    def last_id(self) -> str | None:
        """The newest item's."""
        return self._items[-1].id if self._items else None

    def _place(self, item_id: str, param: str, code: str = _NO_ITEM) -> int:
        for place, item in enumerate(self._items):
            if item.id == item_id:
                return place
        raise InvalidRequestError(
            f"`{param}`: there is no item {item_id!r} in this conversation", param=param, code=code
        )


def chat_messages(items: Sequence[Item], instructions: str) -> tuple[ChatMessage, ...]:
    """What the model is told: the instructions, then the newest items as far as 12,000 characters reach.

    A spoken turn is told by its words where they are known, else by its sound.
    """
    messages: list[ChatMessage] = []
    left = _MAX_PROMPT_CHARS - len(instructions)
    for item in reversed(items):
        parts = tuple(part for part in map(_chat_part, item.parts) if part is not None)
        if not parts:
            continue
        message = ChatMessage(item.role, parts)
        left -= len(message.text)
        if left < 0 and messages:
            break
        messages.append(message)
    if instructions:
        messages.append(ChatMessage("system", instructions))
    return tuple(reversed(messages))


def _chat_part(part: Part) -> ChatPart | None:
    match part:
        case Written(text=text) | Spoken(transcript=text):
            return text or None
        case Heard(transcript=str(text)):
            return text or None
        case Heard(samples=samples):
            return None if samples is None else Sound(samples)
