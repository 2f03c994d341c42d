"""Tools in the body of a chat request: what the model may call, and what it has called.

In: JSON objects. Out: validated models, and a definition as the one JSON text that chat templates read.
Does not know: templates, whether the model can call anything.
"""

from typing import Annotated, Literal

import msgspec
from pydantic import BeforeValidator, Field

from antiphon.server.schema import OpenAiBody, Text

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class FunctionDefinition(OpenAiBody):
    """A function that the model may call."""

    name: Name = Field(description="Letters, digits, `_`, `-` and `.`, at most 64.")
    description: Text = Field(default="", description="When and how to call it.")
    parameters: dict[str, object] | None = Field(default=None, description="JSON Schema of its arguments.")


class ToolDefinition(OpenAiBody):
    """A tool that the model may call."""

    type: Literal["function"] = Field(description="Only functions.")
    function: FunctionDefinition = Field(description="The function.")

    def document(self) -> str:
        """The definition as JSON, without what was not given."""
        function = self.function.model_dump(exclude_unset=True)
        return msgspec.json.encode({"type": "function", "function": function}).decode()


class CalledFunction(OpenAiBody):
    """A function and the arguments of one call."""

    name: Name = Field(description="The function's name.")
    arguments: Text = Field(default="{}", description="Its arguments as JSON, as the model wrote them.")


class RequestToolCall(OpenAiBody):
    """A call that an earlier answer asked for."""

    id: Text = Field(default="", description="The id that the result names.")
    type: Literal["function"] = Field(default="function", description="Only functions.")
    function: CalledFunction = Field(description="What was called.")


def _free_choice(value: object) -> object:
    if value == "required" or isinstance(value, dict):
        raise ValueError("no model here can be made to call a tool; it must be `auto` or `none`")
    return value


ToolChoice = Annotated[Literal["none", "auto"], BeforeValidator(_free_choice)]
