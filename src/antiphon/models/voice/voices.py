"""The voices that this pipeline speaks with, and OpenAI's names for them.

In: a voice name from a request. Out: a name the acoustic model knows.
Does not know: HTTP, models, files.
"""

from collections.abc import Mapping
from types import MappingProxyType

from antiphon.errors import InvalidRequestError

VOICES = ("heart",)
_OPENAI_NAMES = (
    *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable"),
    *("marin", "nova", "onyx", "sage", "shimmer", "verse"),
)
VOICE_ALIASES: Mapping[str, str] = MappingProxyType(dict.fromkeys(_OPENAI_NAMES, "heart"))


def resolve_voice(name: str) -> str:
    """`resolve_voice("alloy") == "heart"`; an unknown name is an InvalidRequestError that lists the valid ones."""
    if name in VOICES:
        return name
    if name in VOICE_ALIASES:
        return VOICE_ALIASES[name]
    valid = ", ".join((*VOICES, *VOICE_ALIASES))
    raise InvalidRequestError(f"voice {name!r} is not known; use one of: {valid}", param="voice")
