"""What the frontend makes of a conversation, and what it refuses."""

import numpy as np
import pytest

from antiphon.client.frontend import FrontendLimits
from antiphon.config.pipeline import Modality
from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.messages.params import SamplingParams
from antiphon.messages.tasks import ChatInput, ChatMessage, ChatPart, Picture, Sound, SpeechInput, Video
from antiphon.models.qwen3_omni import prompts
from antiphon.models.qwen3_omni.frontend import OmniFrontend

FRONTEND = OmniFrontend(FrontendLimits(max_text_chars=100, max_audio_s=1.0, max_pixels=1000, max_video_frames=4))
SECOND = np.zeros(16_000, np.float32)
HELLO = ChatMessage("user", "hello")


def test_a_spoken_turn_and_its_answer_by_a_named_speaker() -> None:
    sampling = SamplingParams(seed=5)
    chat = ChatInput((ChatMessage("user", (Sound(SECOND), "what is this?")),), sampling, audio_out=True, voice="ethan")
    payload = FRONTEND.prepare(chat)
    assert payload.inputs == {Modality.TEXT, Modality.AUDIO} and payload.outputs == {Modality.TEXT, Modality.AUDIO}
    assert payload.params.sampling == sampling
    assert (payload.params.speech.voice, payload.params.speech.seed) == ("ethan", 5)
    document = prompts.decode(payload.rows[prompts.KEY])
    assert isinstance(document, prompts.Conversation)
    assert document.turns[0].parts == (prompts.Sound(prompts.Tensor.of(SECOND)), "what is this?")
    assert not payload.whole


def test_a_text_answer_asks_for_no_speech() -> None:
    assert FRONTEND.prepare(ChatInput((HELLO,))).outputs == {Modality.TEXT}


PIXELS = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
FRAMES = np.stack([PIXELS, PIXELS[::-1]])


def said(*parts: ChatPart, use_audio_in_video: bool = False) -> ChatInput:
    return ChatInput((ChatMessage("user", parts),), use_audio_in_video=use_audio_in_video)


def test_the_parts_of_a_turn_keep_their_order_and_tell_the_modalities() -> None:
    payload = FRONTEND.prepare(said("before", Picture(PIXELS), Video(FRAMES, 2.0), "after"))
    assert payload.inputs == {Modality.TEXT, Modality.IMAGE, Modality.VIDEO}
    document = prompts.decode(payload.rows[prompts.KEY])
    assert isinstance(document, prompts.Conversation)
    assert document.turns[0].parts == (
        "before",
        prompts.Picture(prompts.Tensor.of(PIXELS)),
        prompts.Video(prompts.Tensor.of(FRAMES), 2.0),
        "after",
    )


@pytest.mark.parametrize("use_audio_in_video", [True, False])
def test_a_videos_sound_goes_along_only_if_it_shall_be_heard(use_audio_in_video: bool) -> None:
    payload = FRONTEND.prepare(said(Video(FRAMES, 2.0, SECOND), use_audio_in_video=use_audio_in_video))
    document = prompts.decode(payload.rows[prompts.KEY])
    assert isinstance(document, prompts.Conversation)
    (video,) = document.turns[0].parts
    assert isinstance(video, prompts.Video) and (video.sound is not None) == use_audio_in_video


@pytest.mark.parametrize(
    ("chat", "param", "message"),
    [
        (ChatInput(()), "messages", "must end with a message to answer"),
        (ChatInput((HELLO, ChatMessage("assistant", "hi"))), "messages", "must end with a message to answer"),
        (ChatInput((ChatMessage("tool", "x"),)), "messages", "role 'tool'"),
        (said("x" * 101), "messages", "101 characters"),
        (said("\ud800"), "messages", "Unicode"),
        (said(Sound(SECOND[:10])), "messages", "at least 20 ms"),
        (said(Sound(np.zeros((2, 16_000), np.float32))), "messages", "mono"),
        (said(Sound(np.zeros(16_001, np.float32))), "messages", "max_audio_s"),
        (said(Picture(PIXELS[..., 0])), "messages", "this is uint8 4x5"),
        (said(Picture(PIXELS.astype(np.float32))), "messages", "this is float32 4x5x3"),
        (said(Picture(np.zeros((5, 4, 4), np.uint8))), "messages", "this is uint8 5x4x4"),
        (said(Picture(PIXELS[:0])), "messages", "this is uint8 0x5x3"),
        (
            said(Picture(np.zeros((30, 30, 3), np.uint8)), Video(np.zeros((2, 6, 10, 3), np.uint8), 1.0)),
            "messages",
            "1020",
        ),
        (said(Video(PIXELS, 1.0)), "messages", "a video is uint8"),
        (said(Video(FRAMES, 0.0)), "messages", "frames_per_s"),
        (said(Video(FRAMES, float("inf"))), "messages", "frames_per_s"),
        (said(Video(FRAMES, 1.0), Video(np.zeros((3, 1, 1, 3), np.uint8), 1.0)), "messages", "5 frames"),
        (said(Video(FRAMES, 1.0, SECOND[:10])), "messages", "at least 20 ms"),
        (
            said(Video(FRAMES, 1.0, SECOND), Video(FRAMES, 1.0), use_audio_in_video=True),
            "messages",
            "some have none",
        ),
        (ChatInput((HELLO,), audio_out=True, speed=1.5), "speed", "own pace"),
        (SpeechInput("read this"), "model", "one task"),
    ],
)
def test_what_cannot_be_served_names_the_parameter(chat: ChatInput | SpeechInput, param: str, message: str) -> None:
    with pytest.raises(AntiphonError) as caught:
        FRONTEND.prepare(chat)
    assert caught.value.param == param and caught.value.http_status in (400, 413)
    assert message in caught.value.message


def test_a_message_that_is_not_unicode_is_an_invalid_request() -> None:
    with pytest.raises(InvalidRequestError, match="Unicode"):
        FRONTEND.prepare(ChatInput((ChatMessage("user", "\ud800"),)))
