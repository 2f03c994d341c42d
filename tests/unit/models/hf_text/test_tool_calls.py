"""Calls of tools in an answer: found however the text is cut, and what only looks like one stays text."""

import pytest

pytest.importorskip("transformers")

from antiphon.messages.client import CalledTool
from antiphon.models.hf_text.tool_calls import ToolCallParser

ULM = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm", "days": [1, 2]}}\n</tool_call>'
BONN = '<tool_call>{"arguments": {"city": "Bonn <tool_call>"}, "name": "weather"}</tool_call>'
ULM_CALL = CalledTool("weather", '{"city": "Ulm", "days": [1, 2]}')
BONN_CALL = CalledTool("weather", '{"city": "Bonn <tool_call>"}')
CASES = {
    "no call": ("Just <b>text</b> < 5 <tool", "Just <b>text</b> < 5 <tool", []),
    "one call": (ULM, "", [ULM_CALL]),
    "two calls": (f"{ULM}\n{BONN}\n", "", [ULM_CALL, BONN_CALL]),
    "text around": (f"I look. {ULM}\n There. {BONN}", "I look. There. ", [ULM_CALL, BONN_CALL]),
    "no arguments": ('<tool_call>{"name": "now"}</tool_call>', "", [CalledTool("now", "{}")]),
    "no closing mark": ('<tool_call>{"name": "now"}', "", [CalledTool("now", "{}")]),
    "no JSON": ("<tool_call>weather(Ulm)</tool_call> ok", "<tool_call>weather(Ulm)</tool_call> ok", []),
    "no name": ('<tool_call>{"a": 1}</tool_call>', '<tool_call>{"a": 1}</tool_call>', []),
    "cut off": ('<tool_call>{"name": "wea', '<tool_call>{"name": "wea', []),
}


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("case", CASES)
def test_calls_come_out_however_the_text_is_cut(case: str, size: int) -> None:
    written, text, calls = CASES[case]
    parser = ToolCallParser()
    made = [parser.push(written[start : start + size]) for start in range(0, len(written), size)]
    made.append(parser.finish())
    assert ("".join(piece for piece, _ in made), [call for _, found in made for call in found]) == (text, calls)
    assert parser.num_calls == len(calls)


def test_text_before_a_call_does_not_wait_for_it() -> None:
    parser = ToolCallParser()
    assert parser.push("I look. <tool")[0] == "I look. "
    assert parser.push("s> are")[0] == "<tools> are"
