from antiphon.models.voice.voices import VOICE_ALIASES, VOICES


def test_aliases_lead_to_existing_voices_only() -> None:
    assert set(VOICE_ALIASES.values()) <= set(VOICES)
    assert not set(VOICE_ALIASES) & set(VOICES)
