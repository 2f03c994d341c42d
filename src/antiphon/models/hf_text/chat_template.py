"""A checkpoint's chat template, and whether it has a place for tools.

In: a Conversation. Out: the prompt's text, or an InvalidRequestError. Does not know: tokens, requests, answers.
"""

from typing import Any

import msgspec
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from antiphon.errors import InvalidRequestError, UnsupportedOptionError
from antiphon.messages.conversation import Conversation, Turn
from antiphon.messages.tasks import ToolCall

_PROBE = "probe_9f86d081"
"""A word that no template has; where it is in the prompt, the template has read what it was put into."""
_TOOL = msgspec.json.encode({"type": "function", "function": {"name": _PROBE, "parameters": {}}}).decode()
_ASKED = Turn("user", "?")
_CALLED = (_ASKED, Turn("assistant", tool_calls=(ToolCall("1", _PROBE, "{}"),)), Turn("tool", "!", tool_call_id="1"))
_FAULTS = (TemplateError, TypeError, ValueError)
"""What a template makes of a conversation that it was not written for."""


class ChatTemplate:
    """Owns nothing but a reference to the tokenizer; it has found out what its template reads."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._takes_tools = self._reads(Conversation((_ASKED,), tools=(_TOOL,)))
        self._takes_tool_calls = self._reads(Conversation(_CALLED))

    def render(self, conversation: Conversation) -> str:
        """The prompt, up to where the answer begins. UnsupportedOptionError for what the template would drop."""
        if conversation.tools and not self._takes_tools:
            raise UnsupportedOptionError(
                "`tools`: this model's chat template has no place for tools; leave them out, or serve a model that was "
                "trained to call them",
                param="tools",
            )
        if not self._takes_tool_calls and any(turn.tool_calls or turn.role == "tool" for turn in conversation.turns):
            raise UnsupportedOptionError(
                "`messages`: this model's chat template has no place for calls of tools and their results; leave them "
                "out, or send them as text",
                param="messages",
            )
        try:
            return self._render(conversation)
        except _FAULTS as error:  # templates refuse what they were not trained on, roles out of order say
            raise InvalidRequestError(f"`messages`: the model's chat template: {error}", param="messages") from error

    def _reads(self, conversation: Conversation) -> bool:
        try:
            return _PROBE in self._render(conversation)
        except _FAULTS:
            return False

    def _render(self, conversation: Conversation) -> str:
        tools = [msgspec.json.decode(tool) for tool in conversation.tools]
        apply: Any = self._tokenizer.apply_chat_template
        messages = [_message(turn) for turn in conversation.turns]
        return str(apply(messages, tools=tools or None, add_generation_prompt=True, tokenize=False))


def _message(turn: Turn) -> dict[str, object]:
    message: dict[str, object] = {"role": turn.role, "content": turn.content}
    if turn.tool_calls:
        message["tool_calls"] = [_call(call) for call in turn.tool_calls]
    if turn.tool_call_id:
        message["tool_call_id"] = turn.tool_call_id
    return message


def _call(call: ToolCall) -> dict[str, object]:
    """Templates write the arguments as JSON, so they get them as values; what is no JSON stays as it is."""
    try:
        arguments = msgspec.json.decode(call.arguments)
    except msgspec.DecodeError:
        arguments = call.arguments
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
