"""llama.cpp's chat completions: the body that it takes, and the events that it calls back with.

In: a conversation and sampling parameters; a choice of an event. Out: a body; log probabilities.
Does not know: threads, stages, where text goes.
"""

from typing import TypedDict

import msgspec

from antiphon.messages.client import TokenChance, TokenLogprob
from antiphon.messages.conversation import Conversation
from antiphon.messages.params import SamplingParams

_LEAST_LOGPROB = -9999.0


class _Schema(TypedDict):
    schema: object


class _Format(TypedDict):
    type: str
    json_schema: _Schema


class Body(TypedDict, total=False):
    """llama.cpp's chat-completion body."""

    messages: list[dict[str, str]]
    stream: bool
    stream_options: dict[str, bool]
    return_progress: bool
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repeat_penalty: float
    stop: list[str]
    ignore_eos: bool
    seed: int
    cache_prompt: bool
    presence_penalty: float
    frequency_penalty: float
    logit_bias: list[tuple[int, float]]
    logprobs: bool
    top_logprobs: int
    response_format: _Format


class _Delta(TypedDict):
    content: str | None


class _Chance(TypedDict):
    token: str
    bytes: list[int]
    logprob: float | None


class _Logprob(_Chance):
    top_logprobs: list[_Chance]


class _Logprobs(TypedDict):
    content: list[_Logprob]


class _ChoiceLogprobs(TypedDict, total=False):
    logprobs: _Logprobs


class Choice(_ChoiceLogprobs):
    """The part of a chunk that belongs to the answer."""

    delta: _Delta
    finish_reason: str | None


class _Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int


class Error(TypedDict):
    """Why there is no answer."""

    code: int
    message: str


class Event(TypedDict, total=False):
    """What llama.cpp calls back with: a chunk of the answer, or an error."""

    choices: list[Choice]
    usage: _Usage
    error: Error


def body_of(conversation: Conversation, sampling: SamplingParams) -> Body:
    """The body of a streamed answer."""
    body = Body(
        messages=[{"role": turn.role, "content": turn.content} for turn in conversation.turns],
        stream=True,
        stream_options={"include_usage": True},
        return_progress=True,  # it calls back after each batch of the prompt, and so can be stopped there
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repeat_penalty=sampling.repetition_penalty,
        stop=list(sampling.stop),
        ignore_eos=sampling.ignore_eos,
        cache_prompt=True,
    )
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.presence_penalty or sampling.frequency_penalty:
        body["presence_penalty"] = sampling.presence_penalty
        body["frequency_penalty"] = sampling.frequency_penalty
    if sampling.logit_bias:
        body["logit_bias"] = list(sampling.logit_bias)
    if sampling.logprobs is not None:
        body["logprobs"], body["top_logprobs"] = True, max(1, sampling.logprobs)  # none at all for 0
    if conversation.json_schema:
        schema = msgspec.json.decode(conversation.json_schema)
        body["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    return body


def logprobs_of(choice: Choice, num_best: int | None) -> tuple[TokenLogprob, ...]:
    """The tokens of a chunk with their log probabilities and the `num_best` likeliest; () if None were asked for."""
    given = choice.get("logprobs")
    if num_best is None or not given:
        return ()
    return tuple(
        TokenLogprob(_chance(entry), tuple(map(_chance, entry["top_logprobs"][:num_best])))
        for entry in given["content"]
    )


def _chance(entry: _Chance) -> TokenChance:
    """llama.cpp leaves part of a character out of the text, and writes null for a probability of 0."""
    logprob = entry["logprob"]
    return TokenChance(entry["token"], bytes(entry["bytes"]), _LEAST_LOGPROB if logprob is None else logprob)
