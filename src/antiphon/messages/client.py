"""The client lane: what a stage says to the api-server that owns the request.

In: a final stage's output. Out: ClientOutput messages, coalesced in ClientFrames.
Does not know: HTTP, SSE, audio containers, or the stages between.
They refer to values only, so the garbage collector need not look at them (gc=False): thousands may wait for a client.
Where it is done for each output, `type(output) is` tells them apart: isinstance takes long to say no of a struct.
"""

from itertools import chain, groupby, islice
from operator import is_
from typing import Annotated, final

import msgspec

from antiphon.config.pipeline import ClientKind
from antiphon.messages.error_info import ErrorInfo

_BYTES_PER_SAMPLE = 2
_TOKEN_BYTES = 8
_SMALL_BYTES = 64
"""What an output takes beside its text. Each has its `size_bytes`: about what it takes while it waits for a client."""
MAX_QUEUED_FRAMES = 4096
MAX_QUEUED_BYTES = 256 << 20
"""How many ClientFrames of one replica, and bytes of them, wait for an api-server to read; one further behind hangs."""


class Usage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a stage counted for one request."""

    num_input_tokens: int = 0
    num_output_tokens: int = 0
    num_samples: int = 0


class TokenChance(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A token that could have come: its text, its bytes and its log probability.

    The text of a token that holds part of a character has a replacement character in its place.
    """

    text: str
    data: bytes
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A token that has come, and the likeliest ones in its place, most likely first: as many as were asked for."""

    token: TokenChance
    best: tuple[TokenChance, ...] = ()


class TextDelta(msgspec.Struct, frozen=True, gc=False, tag="text", omit_defaults=True):
    """More text, never empty. logprobs: of the tokens that it ends with this text, if the request asked for them."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def size_bytes(self) -> int:
        """While it waits for a client, about."""
        if not self.logprobs:
            return _SMALL_BYTES + len(self.text)
        return _SMALL_BYTES * (1 + sum([1 + len(each.best) for each in self.logprobs])) + len(self.text)


class CalledTool(msgspec.Struct, frozen=True, gc=False, tag="tool_call"):
    """The answer calls a tool. arguments: JSON, as the model wrote it."""

    name: str
    arguments: str

    @property
    def size_bytes(self) -> int:
        """While it waits for a client, about."""
        return _SMALL_BYTES + len(self.arguments)


class TokenDelta(msgspec.Struct, frozen=True, gc=False, tag="tokens"):
    """More token ids."""

    token_ids: list[int]

    @property
    def size_bytes(self) -> int:
        """While it waits for a client, about."""
        return _SMALL_BYTES + _TOKEN_BYTES * len(self.token_ids)


class AudioChunk(msgspec.Struct, frozen=True, gc=False, tag="audio"):
    """More audio: s16le mono samples."""

    pcm: bytes
    sample_rate: int

    @property
    def duration_s(self) -> float:
        """How long it sounds."""
        return len(self.pcm) / _BYTES_PER_SAMPLE / self.sample_rate

    @property
    def size_bytes(self) -> int:
        """While it waits for a client, about."""
        return len(self.pcm)


class ImageOutput(msgspec.Struct, frozen=True, gc=False, tag="image"):
    """One whole picture: uint8 [height, width, channels] in row order."""

    pixels: bytes
    height: int
    width: int
    channels: int

    @property
    def size_bytes(self) -> int:
        """While it waits for a client, about."""
        return len(self.pixels)


class Word(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A word and when it was said."""

    text: str
    start_s: float
    end_s: float


class SegmentScores(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What whisper says of a segment. seek_frames: where its window starts, 10 ms each; token_ids: its text."""

    seek_frames: int
    token_ids: tuple[int, ...]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class Segment(msgspec.Struct, frozen=True, gc=False, tag="segment", omit_defaults=True):
    """A transcribed stretch of audio; times in seconds from the start of the audio."""

    text: str
    start_s: float
    end_s: float
    language: str = ""
    words: tuple[Word, ...] = ()
    scores: SegmentScores | None = None

    @property
    def size_bytes(self) -> int:
        """While it waits for a client, about."""
        return _SMALL_BYTES * (1 + len(self.words)) + len(self.text)


@final
class RawRows(msgspec.Struct, frozen=True, gc=False, tag="raw"):
    """Rows of a declared key as a stage made them: [rows, ...] in row order.

    No API has a place for them: the engine client counts and drops them.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def size_bytes(self) -> int:
        """While it waits for a client, about."""
        return len(self.data)


@final
class OutputEnd(msgspec.Struct, frozen=True, gc=False, tag="end"):
    """The stage has finished this request: its last message on this lane."""

    finish_reason: str = "stop"
    usage: Usage = Usage()

    @property
    def size_bytes(self) -> int:
        """While it waits for a client, about."""
        return _SMALL_BYTES


@final
class OutputError(msgspec.Struct, frozen=True, gc=False, tag="error"):
    """The stage failed this request: its last message on this lane."""

    error: ErrorInfo


ClientData = TextDelta | CalledTool | TokenDelta | AudioChunk | ImageOutput | Segment | RawRows
"""What a model may put on the client lane."""
ClientOutput = ClientData | OutputEnd | OutputError


class Addressed(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a stage says of one request at once, in its order, and which request. An end or an error is the last."""

    request_id: str
    epoch: int
    outputs: Annotated[list[ClientOutput], msgspec.Meta(min_length=1)]


class ClientFrame(msgspec.Struct, frozen=True, gc=False):
    """What a replica sends an api-server at once: all outputs of a turn of its loop, one step or several short ones.

    addressed: each request once. num_sent: outputs the replica has put on this lane for this api-server so far, with
    these. sent_s: monotonic time.
    """

    replica: str
    addressed: list[Addressed]
    num_sent: int = 0
    sent_s: float = 0.0


_TYPES: dict[ClientKind, tuple[type[ClientData], ...]] = {
    ClientKind.TEXT: (TextDelta, CalledTool, Segment),
    ClientKind.TOKENS: (TokenDelta,),
    ClientKind.AUDIO: (AudioChunk,),
    ClientKind.IMAGE: (ImageOutput,),
    ClientKind.RAW: (RawRows,),
}


def num_outputs(addressed: list[Addressed]) -> int:
    """Outputs of all these requests together."""
    return sum([len(each.outputs) for each in addressed])


def joined(outputs: list[ClientOutput]) -> list[ClientOutput]:
    """The same outputs of one request, with text deltas in a row as one, and token deltas in a row as one."""
    kinds = list(map(type, outputs))
    if not any(map(is_, kinds, islice(kinds, 1, None))):
        return outputs
    fewer: list[ClientOutput] = []
    for kind, group in groupby(outputs, type):
        if kind is TextDelta:
            texts = [each for each in group if isinstance(each, TextDelta)]
            logprobs = tuple(chain.from_iterable([each.logprobs for each in texts]))
            fewer.append(TextDelta("".join([each.text for each in texts]), logprobs))
        elif kind is TokenDelta:
            deltas = [each.token_ids for each in group if isinstance(each, TokenDelta)]
            fewer.append(TokenDelta(list(chain.from_iterable(deltas))))
        else:
            fewer += group
    return fewer


def types_of(kinds: frozenset[ClientKind]) -> frozenset[type[ClientData]]:
    """The messages that outputs of the declared `kinds` may become."""
    return frozenset(kind for declared in kinds for kind in _TYPES[declared])
