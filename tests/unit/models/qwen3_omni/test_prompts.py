"""A prompt as bytes, and back."""

import numpy as np
import pytest

from antiphon.errors import InvalidRequestError
from antiphon.models.qwen3_omni.prompts import (
    Conversation,
    Picture,
    Sound,
    Tensor,
    TokenizedPrompt,
    Turn,
    Video,
    decode,
    encode,
)


def test_a_conversation_comes_back_with_its_parts_in_order() -> None:
    sound = np.linspace(-1, 1, 7, dtype=np.float32)
    picture = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)[:, ::2]
    parts = (
        Picture(Tensor.of(picture)),
        "hé",
        Sound(Tensor.of(sound)),
        Video(Tensor.of(picture[None]), 2.0, Tensor.of(sound)),
    )
    got = decode(encode(Conversation((Turn("user", parts),))))
    assert got == Conversation((Turn("user", parts),))
    assert isinstance(got, Conversation)
    seen, _, heard, video = got.turns[0].parts
    assert isinstance(seen, Picture) and seen.pixels.array().tolist() == picture.tolist()
    assert isinstance(heard, Sound) and heard.samples.array().tolist() == sound.tolist()
    assert isinstance(video, Video) and video.frames.array().tolist() == [picture.tolist()]


def test_a_tokenized_prompt_comes_back_writable() -> None:
    got = decode(encode(TokenizedPrompt({"input_ids": Tensor.of(np.array([3, 1], np.int64))}, use_audio_in_video=True)))
    assert isinstance(got, TokenizedPrompt) and got.use_audio_in_video
    array = got.tensors["input_ids"].array()
    array += 1
    assert array.tolist() == [4, 2] and array.dtype == np.int64


def test_bytes_that_are_no_prompt_are_the_clients_error() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decode(np.frombuffer(b"\x00nothing", np.uint8))
    assert caught.value.param == "messages"
