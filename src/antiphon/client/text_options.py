"""What a chat may ask of the stage that writes its answer: only what the pipeline declares, never ignored.

In: a ChatInput, and what is declared. Out: nothing, or UnsupportedOptionError naming the first option that is not.
Does not know: engines, HTTP.
"""

from collections.abc import Iterator

from antiphon.config.deploy import DeployConfig, StageDeploy
from antiphon.config.pipeline import Modality, PipelineSpec, TextOption
from antiphon.errors import InvalidRequestError, UnsupportedOptionError
from antiphon.messages.tasks import ChatInput


class TextOptions:
    """Knows which options the stage that ends a chat's text honours, on the engine that the operator chose."""

    def __init__(self, pipeline: PipelineSpec, config: DeployConfig) -> None:
        self._stage = ""
        self._honoured: frozenset[TextOption] = frozenset()
        self._settings: dict[TextOption, str] = {}
        """With which the stage honours an option."""
        for task in pipeline.tasks:
            if task.name == "chat" and Modality.TEXT in task.finals:
                spec = pipeline.stage(task.text_stage)
                deploy = config.stages.get(spec.name, StageDeploy())
                engine = deploy.engine or spec.engine
                self._stage = f"{pipeline.name}'s {spec.name}"
                self._honoured = spec.text_options.get(engine, frozenset())
                self._settings = {
                    option: f"stages.{spec.name}.engine={other}"
                    for other, options in spec.text_options.items()
                    for option in options
                }

    def check(self, chat: ChatInput) -> None:
        """Raise for the first option that is asked for and not honoured."""
        if chat.json_schema and chat.sampling.ignore_eos:
            raise InvalidRequestError(
                "`ignore_eos`: an answer in JSON ends where the JSON does; leave out one of the two", param="ignore_eos"
            )
        for option, param in _asked(chat):
            if option not in self._honoured:
                honoured = ", ".join(sorted(self._honoured)) or "none of its kind"
                raise UnsupportedOptionError(
                    f"`{param}`: {self._stage} cannot do {option}, only {honoured}"
                    + (f"; with {self._settings[option]} it can" if option in self._settings else ""),
                    param=param,
                )


def _asked(chat: ChatInput) -> Iterator[tuple[TextOption, str]]:
    """The options that the chat needs, each with the parameter that asks for it."""
    sampling = chat.sampling
    if sampling.presence_penalty:
        yield TextOption.PENALTIES, "presence_penalty"
    if sampling.frequency_penalty:
        yield TextOption.PENALTIES, "frequency_penalty"
    if sampling.logit_bias:
        yield TextOption.LOGIT_BIAS, "logit_bias"
    if sampling.logprobs is not None:
        yield TextOption.LOGPROBS, "logprobs"
    if chat.json_schema:
        yield TextOption.JSON, "response_format"
    if chat.tools:
        yield TextOption.TOOLS, "tools"
    if any(message.tool_calls or message.role == "tool" for message in chat.messages):
        yield TextOption.TOOLS, "messages"
