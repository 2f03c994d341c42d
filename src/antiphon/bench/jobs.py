"""What the benchmark asks of the in-process references, one line of JSON each.

In: texts and prompts. Out: messages and their codecs. Does not know: who does the work.
"""

import msgspec

from antiphon.bench.measures import Sample


class Speak(msgspec.Struct, frozen=True, tag=True):
    """Synthesise texts one after the other; the answer's amount is seconds of audio."""

    texts: tuple[str, ...]


class Chat(msgspec.Struct, frozen=True, tag=True):
    """Answer prompts, one thread each; the amount is tokens. until_first: the wall time ends at the first text."""

    prompts: tuple[str, ...]
    max_tokens: int
    until_first: bool = False


Job = Speak | Chat
ENCODE = msgspec.json.Encoder().encode
DECODE_JOB: msgspec.json.Decoder[Job] = msgspec.json.Decoder(Job)
DECODE_SAMPLE = msgspec.json.Decoder(Sample)
