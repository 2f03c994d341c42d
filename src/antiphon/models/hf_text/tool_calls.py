"""Calls of tools in text that is still being written, as Hermes and Qwen models write them.

In: pieces of text. Out: the text between the calls, and the calls. Does not know: tokens, which tools there are.

    <tool_call>
    {"name": "weather", "arguments": {"city": "Ulm"}}
    </tool_call>
"""

import msgspec

from antiphon.messages.client import CalledTool
from antiphon.models.hf_text.stop_strings import overlap

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class _Written(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class ToolCallParser:
    """Owns the text that may be or become a call. What only looks like one comes out as text, as it was written."""

    def __init__(self) -> None:
        self.num_calls = 0
        self._held = ""
        self._is_inside = False
        self._follows_call = False

    def push(self, piece: str) -> tuple[str, list[CalledTool]]:
        """The text and the calls that are certain now."""
        self._held += piece
        text, calls = "", list[CalledTool]()
        while (at := self._held.find(_CLOSE if self._is_inside else _OPEN)) >= 0:
            before, self._held = self._held[:at], self._held[at + len(_CLOSE if self._is_inside else _OPEN) :]
            text += self._inside(before + _CLOSE, calls) if self._is_inside else self._outside(before)
            self._is_inside = not self._is_inside
        if not self._is_inside:
            end = len(self._held) - overlap(self._held, _OPEN)
            text += self._outside(self._held[:end])
            self._held = self._held[end:]
        return text, calls

    def finish(self) -> tuple[str, list[CalledTool]]:
        """What was held back: nothing follows. A call may lack its closing mark, where the answer ended with it."""
        calls: list[CalledTool] = []
        text = self._inside(self._held, calls) if self._is_inside else self._outside(self._held)
        self._held = ""
        return text, calls

    def _inside(self, written: str, calls: list[CalledTool]) -> str:
        try:
            call = msgspec.json.decode(written.removesuffix(_CLOSE), type=_Written)
        except msgspec.MsgspecError:
            return _OPEN + written
        calls.append(CalledTool(call.name, bytes(call.arguments).decode()))
        self.num_calls += 1
        self._follows_call = True
        return ""

    def _outside(self, text: str) -> str:
        """`text` without the space that only divides it from a call before it."""
        if self._follows_call:
            text = text.lstrip()
            self._follows_call = not text
        return text
