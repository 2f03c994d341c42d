"""Which voice a request means: a name or alias that the pipeline declares, or its first one. Judged here, for all.

In: a task's input. Out: the same, with the voice's own name. Does not know: what a voice sounds like, HTTP.
"""

import dataclasses

from antiphon.config.pipeline import VoiceSpec, voice_named
from antiphon.messages.tasks import ChatInput, SpeechInput, TaskInput


def in_own_voice(task_input: TaskInput, voices: tuple[VoiceSpec, ...]) -> TaskInput:
    """InvalidRequestError if what is to be spoken names no voice. Models without declared voices judge themselves."""
    match task_input:
        case SpeechInput(voice=name):
            voice = voice_named(voices, name)
        case ChatInput(audio_out=True, voice=name):
            voice = voice_named(voices, name, "audio.voice")
        case _:
            return task_input
    return task_input if voice is None else dataclasses.replace(task_input, voice=voice.name)
