"""The voices that this pipeline speaks with, and OpenAI's names for them.

In: nothing. Out: names, and which voice each of OpenAI's means. Does not know: HTTP, models, files, requests.
"""

from collections.abc import Mapping
from types import MappingProxyType

VOICES = ("heart",)
_OPENAI_NAMES = (
    *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable"),
    *("marin", "nova", "onyx", "sage", "shimmer", "verse"),
)
VOICE_ALIASES: Mapping[str, str] = MappingProxyType(dict.fromkeys(_OPENAI_NAMES, "heart"))
