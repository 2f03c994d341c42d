"""The inputs of a task, as a library user or the HTTP server states them.

In: validated plain values. Out: frozen dataclasses that a pipeline's frontend turns into entry arrays.
Does not know: HTTP, models, or stages.
"""

from dataclasses import dataclass, field

import numpy as np

from antiphon.errors import InvalidRequestError
from antiphon.messages.params import SamplingParams


@dataclass(frozen=True)
class SpeechInput:
    """Text to be spoken. speed 0.25-4; voice "" = the pipeline's first voice; seed fixes the noise.

    continues: see SpeechParams.
    """

    text: str
    voice: str = ""
    speed: float = 1.0
    language: str = ""
    seed: int | None = None
    continues: bool = False


@dataclass(frozen=True)
class Sound:
    """A spoken part of a turn. samples: float32 mono 16 kHz [samples]."""

    samples: np.ndarray


@dataclass(frozen=True)
class Picture:
    """pixels: uint8 RGB [height, width, 3]."""

    pixels: np.ndarray


@dataclass(frozen=True)
class Video:
    """frames: uint8 RGB [frames, height, width, 3]; frames_per_s of them show a second.

    sound: float32 mono 16 kHz [samples], or None; heard only if ChatInput.use_audio_in_video is set.
    """

    frames: np.ndarray
    frames_per_s: float
    sound: np.ndarray | None = None


ChatPart = str | Sound | Picture | Video


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool that an assistant's message asked for. arguments: JSON, as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ChatMessage:
    """One turn: its text, or its parts in the order in which the model shall read, hear and see them.

    tool_calls: what an assistant's turn asked for. tool_call_id: which of them a tool's turn answers.
    """

    role: str
    content: str | tuple[ChatPart, ...] = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""

    @property
    def parts(self) -> tuple[ChatPart, ...]:
        """The content as parts."""
        return (self.content,) if isinstance(self.content, str) else self.content

    @property
    def text(self) -> str:
        """The written parts, a line each."""
        return "\n".join(part for part in self.parts if isinstance(part, str))


@dataclass(frozen=True)
class ChatInput:
    """A conversation to be continued. `audio_out` asks for speech beside the text.

    use_audio_in_video: hear the videos' own sound, in time with their frames. json_schema: the answer is JSON that
    fits this JSON Schema; "" = any text. tools: JSON of each tool's definition, for the model's chat template.
    """

    messages: tuple[ChatMessage, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    audio_out: bool = False
    voice: str = ""
    speed: float = 1.0
    use_audio_in_video: bool = False
    json_schema: str = ""
    tools: tuple[str, ...] = ()


@dataclass(frozen=True)
class TranscriptionInput:
    """Speech to be written down: float32 mono 16 kHz [samples]. The rest: see TranscriptionParams."""

    audio: np.ndarray
    language: str = ""
    prompt: str = ""
    temperature: float = 0.0
    times_words: bool = False
    translates: bool = False


@dataclass(frozen=True)
class ImageInput:
    """What a picture shall show. seed fixes the noise."""

    text: str
    seed: int | None = None


TaskInput = SpeechInput | ChatInput | TranscriptionInput | ImageInput


def has_media(task_input: TaskInput) -> bool:
    """True if there are sounds, pictures or videos in it: they take a while to convert."""
    match task_input:
        case ChatInput(messages=messages):
            return any(not isinstance(part, str) for message in messages for part in message.parts)
        case TranscriptionInput():
            return True
        case SpeechInput() | ImageInput():
            return False


_KINDS: dict[str, type[TaskInput]] = {
    "speech": SpeechInput,
    "chat": ChatInput,
    "transcription": TranscriptionInput,
    "image": ImageInput,
}


def as_task_input(task: str, inputs: TaskInput | str | np.ndarray) -> TaskInput:
    """The input of `task`: as given, or with every other field at its default.

    A str is the text of a speech or picture, or the user's message of a chat; an array is the audio of a transcription.
    InvalidRequestError if the two do not go together.
    """
    if isinstance(inputs, str) and task == "speech":
        return SpeechInput(inputs)
    if isinstance(inputs, str) and task == "image":
        return ImageInput(inputs)
    if isinstance(inputs, str) and task == "chat":
        return ChatInput((ChatMessage("user", inputs),))
    if isinstance(inputs, np.ndarray) and task == "transcription":
        return TranscriptionInput(inputs)
    if task in _KINDS and isinstance(inputs, _KINDS[task]):
        return inputs
    raise InvalidRequestError(
        f"task {task!r} does not take a {type(inputs).__name__}; "
        f"there is {', '.join(f'{name} ({kind.__name__})' for name, kind in _KINDS.items())}",
        param="inputs",
    )
