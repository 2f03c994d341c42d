"""An item of a conversation as a client gives it.

In: validated bodies. Out: Items with their sound decoded, or InvalidRequestError naming the part.
Does not know: conversations, what a model hears.
"""

from antiphon.errors import InvalidRequestError
from antiphon.server.data_url import base64_bytes
from antiphon.server.realtime.conversation import Heard, Item, Part, Spoken, Written, new_item_id
from antiphon.server.realtime.schema import ContentPart, ItemBody
from antiphon.server.realtime.wire_audio import WireFormat, WireInput

_TYPES = {
    "user": ("input_text", "input_audio", "text"),
    "system": ("input_text", "text"),
    "assistant": ("output_text", "output_audio", "text", "audio"),
}
"""Role -> types of its parts; the beta said `text` and `audio` for what an assistant has said."""


def item_of(body: ItemBody, where: str, format: WireFormat) -> Item:
    """The item at `where` in the event; sound in it is in the session's input format."""
    parts = [_part(part, body.role, f"{where}.content[{n}]", format) for n, part in enumerate(body.content)]
    return Item(body.role, parts, body.id or new_item_id())


def _part(part: ContentPart, role: str, where: str, format: WireFormat) -> Part:
    if part.type not in _TYPES[role]:
        known = ", ".join(_TYPES[role])
        raise InvalidRequestError(f"`{where}.type`: {part.type!r} is none of {role}'s: {known}", param=f"{where}.type")
    match part.type:
        case "input_audio" if part.audio:
            data = base64_bytes(part.audio, f"{where}.audio")
            return Heard(WireInput(format).decode(data, last=True), part.transcript)
        case "input_audio":
            return Heard(None, _given(part.transcript, f"{where}.audio"))
        case "output_audio" | "audio":
            return Spoken(_given(part.transcript, f"{where}.transcript"), is_whole=True)
        case _:
            return Written(_given(part.text, f"{where}.text"))


def _given(text: str | None, param: str) -> str:
    if text is None:
        raise InvalidRequestError(f"`{param}` is required", param=param, code="missing_field")
    return text
