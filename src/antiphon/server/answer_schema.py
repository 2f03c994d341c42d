"""What the routes answer, described for the OpenAPI document; tests hold real answers against it.

In: nothing. Out: pydantic models. Does not know: how answers are made (they are plain dicts, encoded by msgspec).
"""

from typing import Literal

from pydantic import BaseModel, Field


class ErrorDetails(BaseModel):
    """What went wrong, and what to do about it."""

    message: str = Field(description="What happened, and what to do.")
    type: str = Field(description="Whose matter it is: invalid_request_error, overloaded_error or server_error.")
    param: str | None = Field(description="The field that it is about, as `messages[0].role`.")
    code: str = Field(description="Which kind of error.")


class ErrorEnvelope(BaseModel):
    """Every error of every route."""

    error: ErrorDetails = Field(description="The error.")


class TokenUsage(BaseModel):
    """Tokens of a chat."""

    prompt_tokens: int = Field(description="Tokens of the conversation.")
    completion_tokens: int = Field(description="Tokens of the answer.")
    total_tokens: int = Field(description="Their sum.")


class SpokenAnswer(BaseModel):
    """The spoken form of a message."""

    id: str = Field(description="A name of this audio; the server does not keep it.")
    data: str = Field(description="Base64 of a file of the format that was asked for.")
    transcript: str = Field(description="What is said.")
    expires_at: int = Field(description="Unix seconds: at once, since nothing is kept for later turns.")


class AnswerFunction(BaseModel):
    """A function, and what the model would call it with."""

    name: str = Field(description="The function's name.")
    arguments: str = Field(description="JSON, as the model wrote it.")


class AnswerToolCall(BaseModel):
    """A call that the model asks for."""

    id: str = Field(description="What the `tool` message with its result names.")
    type: Literal["function"] = Field(description="Always function.")
    function: AnswerFunction = Field(description="What is called.")


class AnswerMessage(BaseModel):
    """The answer's text, its speech if that was asked for, and the tools that it calls."""

    role: Literal["assistant"] = Field(description="Always assistant.")
    content: str | None = Field(description="The text; null if there are only calls.")
    refusal: str | None = Field(description="Always null.")
    audio: SpokenAnswer | None = Field(default=None, description="The speech, if `modalities` has `audio`.")
    tool_calls: list[AnswerToolCall] = Field(default=[], description="The calls, if the model writes any.")


class TokenChance(BaseModel):
    """A token that could have come."""

    token: str = Field(description="Its text.")
    logprob: float = Field(description="Its log probability; -9999 for none.")
    bytes: list[int] = Field(description="Its UTF-8 bytes, which may be part of a character.")


class ChosenToken(TokenChance):
    """The token that came, and the likeliest ones."""

    top_logprobs: list[TokenChance] = Field(description="The likeliest tokens, as many as were asked for.")


class ChoiceLogprobs(BaseModel):
    """Log probabilities of a text."""

    content: list[ChosenToken] | None = Field(description="One entry for each token.")
    refusal: list[ChosenToken] | None = Field(description="Always null.")


class Choice(BaseModel):
    """One answer."""

    index: int = Field(description="Its number, from 0.")
    message: AnswerMessage = Field(description="The answer.")
    logprobs: ChoiceLogprobs | None = Field(description="Log probabilities, if they were asked for.")
    finish_reason: str = Field(description="Why it ended: `stop`, `length` or `tool_calls`.")


class ChatCompletion(BaseModel):
    """A whole answer. Streamed, the same comes in pieces, as events with `chat.completion.chunk` objects."""

    id: str = Field(description="A name of this answer.")
    object: Literal["chat.completion"] = Field(description="Always chat.completion.")
    created: int = Field(description="Unix seconds.")
    model: str = Field(description="The model as the request named it.")
    choices: list[Choice] = Field(description="The answers.")
    usage: TokenUsage = Field(description="What was counted.")


class AudioUsage(BaseModel):
    """What a transcription is measured by."""

    type: Literal["duration"] = Field(description="Always duration.")
    seconds: float = Field(description="Length of the audio.")


class TranscriptSegment(BaseModel):
    """A part of what is said. The fields with a default are there if the listener scores what it hears."""

    id: int = Field(description="Its number, from 0.")
    start: float = Field(description="Seconds from the beginning of the audio.")
    end: float = Field(description="Seconds from the beginning of the audio.")
    text: str = Field(description="What is said.")
    seek: int = Field(default=0, description="Where the listener began to look, in frames of 10 ms.")
    tokens: list[int] = Field(default=[], description="The text's tokens.")
    temperature: float = Field(default=0.0, description="At which it was sampled.")
    avg_logprob: float = Field(default=0.0, description="Mean log probability of the tokens.")
    compression_ratio: float = Field(default=0.0, description="High: the text repeats itself.")
    no_speech_prob: float = Field(default=0.0, description="Probability that nobody speaks.")


class TranscriptWord(BaseModel):
    """A word and its time."""

    word: str = Field(description="The word.")
    start: float = Field(description="Seconds from the beginning of the audio.")
    end: float = Field(description="Seconds from the beginning of the audio.")


class Transcription(BaseModel):
    """`response_format` json and verbose_json; the fields with a default are only in verbose_json."""

    text: str = Field(description="All that is said.")
    usage: AudioUsage = Field(description="What was measured.")
    task: Literal["transcribe", "translate"] = Field(default="transcribe", description="What was done.")
    language: str = Field(default="", description="Language of the speech, as given or detected.")
    duration: float = Field(default=0.0, description="Length of the audio in seconds.")
    segments: list[TranscriptSegment] = Field(default=[], description="Its parts, if their times were asked for.")
    words: list[TranscriptWord] = Field(default=[], description="Its words, if their times were asked for.")


class Model(BaseModel):
    """A name that `model` may have."""

    id: str = Field(description="The name.")
    object: Literal["model"] = Field(description="Always model.")
    created: int = Field(description="Unix seconds: the server's start.")
    owned_by: str = Field(description="Always antiphon.")


class ModelList(BaseModel):
    """All names; they mean the same pipeline."""

    object: Literal["list"] = Field(description="Always list.")
    data: list[Model] = Field(description="The pipeline's own name first.")


class VoiceEntry(BaseModel):
    """A voice."""

    id: str = Field(description="Its name.")
    name: str = Field(description="Its name.")
    language: str = Field(description="The language that it speaks, e.g. `en-US`.")
    aliases: list[str] = Field(description="Names of OpenAI's voices that it also answers to.")


class VoiceList(BaseModel):
    """All voices."""

    object: Literal["list"] = Field(description="Always list.")
    voices: list[VoiceEntry] = Field(description="The default one first.")


class SpeechOutcome(BaseModel):
    """What a speech request has come to."""

    id: str = Field(description="Its x-request-id.")
    object: Literal["audio.speech"] = Field(description="Always audio.speech.")
    status: Literal["in_progress", "completed", "failed", "cancelled"] = Field(
        description="How far it is; cancelled: its client hung up."
    )
    usage: dict[str, int] | None = Field(description="What was counted, once it is completed.")
    duration_s: float = Field(description="Seconds of audio that were made.")
    error: ErrorDetails | None = Field(description="Why it failed.")


class StreamEvent(BaseModel):
    """One server-sent event of a stream."""

    event: Literal["message", "error"] = Field(default="message", description="error: the last one, if it failed.")
    data: str = Field(description="A JSON object, or [DONE] at the end of a chat.")


class Health(BaseModel):
    """The process answers."""

    status: Literal["ok"] = Field(description="Always ok.")


class Readiness(BaseModel):
    """New requests are taken."""

    status: Literal["ready"] = Field(description="Always ready.")
    stages: dict[str, int] = Field(description="Stage -> live replicas.")
