import pytest

from antiphon.errors import InvalidRequestError
from antiphon.models.voice.voices import VOICE_ALIASES, VOICES, resolve_voice

OPENAI_VOICES = ("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "verse")


def test_own_voice_resolves_to_itself() -> None:
    assert resolve_voice("heart") == "heart"


@pytest.mark.parametrize("name", OPENAI_VOICES)
def test_every_openai_name_is_spoken_by_heart(name: str) -> None:
    assert resolve_voice(name) == "heart"


def test_aliases_lead_to_existing_voices_only() -> None:
    assert set(VOICE_ALIASES.values()) <= set(VOICES)


def test_unknown_voice_is_refused_with_every_valid_name() -> None:
    with pytest.raises(InvalidRequestError) as refused:
        resolve_voice("emma")
    assert refused.value.param == "voice"
    assert "'emma'" in refused.value.message
    assert all(name in refused.value.message for name in ("heart", *OPENAI_VOICES))
