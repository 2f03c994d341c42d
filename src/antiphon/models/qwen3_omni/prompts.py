"""A prompt on its way to the thinker: one document of bytes, so that it can be cut into chunks anywhere.

In: a conversation, or a prompt that is tokenized already. Out: uint8 [num_bytes], and back.
Does not know: tokenizers, torch, HTTP.
"""

import msgspec
import numpy as np

from antiphon.errors import InvalidRequestError

KEY = "prompt"
"""The entry edge's only key."""


class Tensor(msgspec.Struct, frozen=True):
    """An array: numpy dtype name, shape, and its bytes in row order."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, array: np.ndarray) -> "Tensor":
        """A copy of `array`."""
        return cls(array.dtype.name, array.shape, np.ascontiguousarray(array).tobytes())

    def array(self) -> np.ndarray:
        """The array, writable."""
        return np.frombuffer(self.data, self.dtype).reshape(self.shape).copy()


class Sound(msgspec.Struct, frozen=True, tag="sound"):
    """float32 [samples], 16 kHz."""

    samples: Tensor


class Picture(msgspec.Struct, frozen=True, tag="picture"):
    """uint8 [h, w, 3]."""

    pixels: Tensor


class Video(msgspec.Struct, frozen=True, tag="video"):
    """frames: uint8 [n, h, w, 3]; sound: float32 [samples], 16 kHz, to be heard in time with them."""

    frames: Tensor
    frames_per_s: float
    sound: Tensor | None = None


Part = str | Sound | Picture | Video


class Turn(msgspec.Struct, frozen=True):
    """One message: its parts, in the order of the prompt."""

    role: str
    parts: tuple[Part, ...]


class Conversation(msgspec.Struct, frozen=True, tag="conversation"):
    """What the checkpoint's own processor makes a prompt of. Either every video has a sound, or none."""

    turns: tuple[Turn, ...]


class TokenizedPrompt(msgspec.Struct, frozen=True, tag="tokenized"):
    """What that processor would make: input_ids [n], and the features of its media, by the processor's names."""

    tensors: dict[str, Tensor]
    use_audio_in_video: bool = False


Prompt = Conversation | TokenizedPrompt


def encode(prompt: Prompt) -> np.ndarray:
    """uint8 [num_bytes]."""
    return np.frombuffer(msgspec.msgpack.encode(prompt), np.uint8)


def decode(document: np.ndarray) -> Prompt:
    """The prompt; InvalidRequestError if the bytes are none."""
    try:
        return msgspec.msgpack.decode(document.tobytes(), type=Prompt)
    except msgspec.MsgspecError as error:
        raise InvalidRequestError(f"the prompt is not readable: {error}", param="messages") from error
