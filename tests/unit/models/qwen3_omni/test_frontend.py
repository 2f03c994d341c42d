"""What the frontend makes of a conversation, and what it refuses."""

import numpy as np
import pytest

from antiphon.client.frontend import FrontendLimits
from antiphon.config.pipeline import Modality
from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.messages.params import SamplingParams
from antiphon.messages.tasks import ChatInput, ChatMessage, SpeechInput
from antiphon.models.qwen3_omni import prompts
from antiphon.models.qwen3_omni.frontend import OmniFrontend

FRONTEND = OmniFrontend(FrontendLimits(max_text_chars=100, max_audio_s=1.0))
SECOND = np.zeros(16_000, np.float32)
HELLO = ChatMessage("user", "hello")


def test_a_spoken_turn_and_its_answer_by_a_named_speaker() -> None:
    sampling = SamplingParams(seed=5)
    chat = ChatInput((ChatMessage("user", "what is this?", SECOND),), sampling, audio_out=True, voice="ethan")
    payload = FRONTEND.prepare(chat)
    assert payload.inputs == {Modality.TEXT, Modality.AUDIO} and payload.outputs == {Modality.TEXT, Modality.AUDIO}
    assert payload.params.sampling == sampling
    assert (payload.params.speech.voice, payload.params.speech.seed) == ("ethan", 5)
    document = prompts.decode(payload.rows[prompts.KEY])
    assert isinstance(document, prompts.Conversation)
    audio = document.turns[0].audio
    assert document.turns[0].text == "what is this?" and audio is not None and audio.shape == (16_000,)
    assert not payload.whole


def test_a_text_answer_asks_for_no_speech() -> None:
    assert FRONTEND.prepare(ChatInput((HELLO,))).outputs == {Modality.TEXT}


@pytest.mark.parametrize(
    ("chat", "param"),
    [
        (ChatInput(()), "messages"),
        (ChatInput((HELLO, ChatMessage("assistant", "hi"))), "messages"),
        (ChatInput((ChatMessage("tool", "x"),)), "messages"),
        (ChatInput((ChatMessage("user", "x" * 101),)), "messages"),
        (ChatInput((ChatMessage("user", "\ud800"),)), "messages"),
        (ChatInput((ChatMessage("user", "", SECOND[:10]),)), "messages"),
        (ChatInput((ChatMessage("user", "", np.zeros((2, 16_000), np.float32)),)), "messages"),
        (ChatInput((ChatMessage("user", "", np.zeros(16_001, np.float32)),)), "messages"),
        (ChatInput((HELLO,), audio_out=True, speed=1.5), "speed"),
        (SpeechInput("read this"), "model"),
    ],
    ids=["empty", "answered", "role", "long", "surrogate", "short audio", "stereo", "long audio", "speed", "speech"],
)
def test_what_cannot_be_served_names_the_parameter(chat: ChatInput | SpeechInput, param: str) -> None:
    with pytest.raises(AntiphonError) as caught:
        FRONTEND.prepare(chat)
    assert caught.value.param == param and caught.value.http_status in (400, 413)


def test_a_message_that_is_not_unicode_is_an_invalid_request() -> None:
    with pytest.raises(InvalidRequestError, match="Unicode"):
        FRONTEND.prepare(ChatInput((ChatMessage("user", "\ud800"),)))
