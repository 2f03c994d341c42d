"""One judge of voices: every name of a voice is that voice, every other name the same error."""

import numpy as np
import pytest

from antiphon.client.own_voice import in_own_voice
from antiphon.config.pipeline import VoiceSpec
from antiphon.errors import InvalidRequestError
from antiphon.messages.tasks import ChatInput, ChatMessage, ImageInput, SpeechInput, TranscriptionInput

VOICES = (VoiceSpec("anna", "en", ("alloy", "ash")), VoiceSpec("ben", "de", ("nova",)))
MESSAGES = (ChatMessage("user", "hi"),)


@pytest.mark.parametrize(
    ("name", "own"),
    [("", "anna"), ("anna", "anna"), ("alloy", "anna"), ("ash", "anna"), ("ben", "ben"), ("nova", "ben")],
)
def test_every_name_of_a_voice_is_that_voice(name: str, own: str) -> None:
    assert in_own_voice(SpeechInput("hi", name, speed=2.0, seed=1), VOICES) == SpeechInput("hi", own, speed=2.0, seed=1)
    spoken = ChatInput(MESSAGES, audio_out=True, voice=name)
    assert in_own_voice(spoken, VOICES) == ChatInput(MESSAGES, audio_out=True, voice=own)


@pytest.mark.parametrize("name", ["nobody", "Anna", " anna", "x" * 1000])
def test_another_name_is_refused_with_every_name_there_is(name: str) -> None:
    for task_input, param in (
        (SpeechInput("hi", name), "voice"),
        (ChatInput(MESSAGES, audio_out=True, voice=name), "audio.voice"),
    ):
        with pytest.raises(InvalidRequestError) as refused:
            in_own_voice(task_input, VOICES)
        assert refused.value.param == param
        told = refused.value.message
        assert told == f"`{param}`: there is no voice {name[:80]!r}; use one of anna, alloy, ash, ben, nova"


def test_a_model_without_declared_voices_judges_itself() -> None:
    assert in_own_voice(SpeechInput("hi", "ethan"), ()) == SpeechInput("hi", "ethan")


def test_what_is_not_spoken_has_no_voice() -> None:
    sound = np.zeros(9, np.float32)
    for task_input in (ChatInput(MESSAGES, voice="nobody"), TranscriptionInput(sound), ImageInput("a cat")):
        assert in_own_voice(task_input, VOICES) is task_input
