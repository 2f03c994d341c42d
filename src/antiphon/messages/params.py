"""What a request asks of its stages besides its input: sampling and speech parameters.

In: values a frontend has validated. Out: one small struct in SubmitRequest and StartRequest.
Does not know: which stage reads which field.
"""

import msgspec

from antiphon.errors import InvalidRequestError

_MAX_BYTES = 32 * 1024
"""Half of what a control message may take (MAX_MESSAGE_BYTES)."""
_NUM_SEEDS = 2**32


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an autoregressive stage picks tokens. temperature 0 is greedy; max_tokens counts new tokens.

    presence_penalty and frequency_penalty are taken off the logits of tokens that have come, once and per time they
    have; logit_bias is added: (token id, bias). logprobs: how many of the likeliest tokens to tell with each token
    and its own log probability; None tells nothing.
    """

    max_tokens: int = 512
    temperature: float = 0.7
    top_p: float = 0.95
    top_k: int = 40
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None


class SpeechParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How speech stages speak. speed 1.0 is the voice's own pace.

    continues: the text goes on from one that is being spoken, so no part of it is wanted early.
    """

    voice: str = ""
    speed: float = 1.0
    language: str = ""
    seed: int | None = None
    continues: bool = False


class TranscriptionParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a listener transcribes. language "" = detect; prompt is preceding text of the same talk.

    times_words: tell when each word was said. translates: write English, whatever is spoken.
    """

    language: str = ""
    prompt: str = ""
    temperature: float = 0.0
    times_words: bool = False
    translates: bool = False


class RequestParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """All parameters of one request."""

    sampling: SamplingParams = SamplingParams()
    speech: SpeechParams = SpeechParams()
    transcription: TranscriptionParams = TranscriptionParams()


def check_size(params: RequestParams) -> None:
    """InvalidRequestError if they are too large for a control message. Frontends bound what else has a length."""
    num_bytes = len(msgspec.msgpack.encode(params))
    if num_bytes > _MAX_BYTES:
        raise InvalidRequestError(
            f"the request's parameters take {num_bytes} bytes, and may take {_MAX_BYTES}; shorten its `stop` texts",
            param="stop",
        )


def part_seed(seed: int | None, number: int) -> int | None:
    """The seed of part `number` of a request: its own for the first, 0, then the next 32-bit ones. None stays None."""
    return None if seed is None else (seed + number) % _NUM_SEEDS
