"""The voice frontend: entry arrays and parameters of good inputs, and the named parameter of bad ones."""

import json

import numpy as np
import pytest

from antiphon.client.frontend import FrontendLimits
from antiphon.config.pipeline import Modality
from antiphon.errors import InvalidRequestError, RequestError, RequestTooLargeError, UnsupportedModalityError
from antiphon.messages.params import RequestParams, SamplingParams, SpeechParams, TranscriptionParams
from antiphon.messages.payload import EntryPayload
from antiphon.messages.tasks import (
    ChatInput,
    ChatMessage,
    Picture,
    Sound,
    SpeechInput,
    TaskInput,
    TranscriptionInput,
    Video,
)
from antiphon.models.voice.frontend import VoiceFrontend

TEXT, AUDIO = frozenset({Modality.TEXT}), frozenset({Modality.AUDIO})
FRONTEND = VoiceFrontend(FrontendLimits(max_text_chars=20, max_audio_s=2.0, max_pixels=1000, max_video_frames=4))
SHORTEST, LONGEST = 320, 32_000  # 20 ms, 2 s


def prepare(task_input: TaskInput) -> EntryPayload:
    return FRONTEND.prepare(task_input)


def refusal(task_input: TaskInput, kind: type[RequestError] = InvalidRequestError) -> tuple[str, str]:
    with pytest.raises(kind) as raised:
        prepare(task_input)
    assert type(raised.value) is kind
    return raised.value.param, raised.value.message


def sound(num_samples: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + num_samples, dtype=np.float32)


def chat(*messages: ChatMessage, audio_out: bool = False, voice: str = "", speed: float = 1.0) -> ChatInput:
    return ChatInput(messages, SamplingParams(max_tokens=7, seed=3), audio_out, voice, speed)


def user(text: str, audio: np.ndarray | None = None) -> ChatMessage:
    return ChatMessage("user", text if audio is None else (text, Sound(audio)))


def test_speech_becomes_utf8_rows_and_the_voice_that_was_asked_for() -> None:
    payload = prepare(SpeechInput("Grüße, 世界!", speed=1.5, seed=9))
    assert (payload.task, payload.inputs, payload.outputs) == ("speech", TEXT, AUDIO)
    assert payload.params == RequestParams(speech=SpeechParams(voice="heart", speed=1.5, seed=9))
    assert payload.rows["text"].tobytes().decode() == "Grüße, 世界!"
    assert payload.rows["text"].dtype == np.uint8
    assert set(payload.rows) == {"text"} and not payload.whole


@pytest.mark.parametrize("voice", ["", "heart"])
def test_who_asks_for_no_voice_gets_the_first(voice: str) -> None:
    assert prepare(SpeechInput("hi", voice)).params.speech.voice == "heart"


@pytest.mark.parametrize(
    ("speech", "param", "message"),
    [
        (SpeechInput(""), "input", "empty or blank"),
        (SpeechInput(" \n\t"), "input", "empty or blank"),
        (SpeechInput("?!… —"), "input", "no letter and no digit"),
        (SpeechInput("x" * 21), "input", "21 characters; it must have at most 20 (server.max_text_chars)"),
        (SpeechInput("hi", speed=0.2499), "speed", "from 0.25 to 4"),
        (SpeechInput("hi", speed=4.001), "speed", "from 0.25 to 4"),
        (SpeechInput("hi", speed=float("nan")), "speed", "`speed` is nan"),
    ],
)
def test_a_speech_that_cannot_be_spoken_is_refused(speech: SpeechInput, param: str, message: str) -> None:
    found_param, found_message = refusal(speech)
    assert found_param == param
    assert message in found_message


@pytest.mark.parametrize("speech", [SpeechInput("7"), SpeechInput("x" * 20), SpeechInput("hi", speed=0.25)])
def test_a_speech_at_the_limits_is_spoken(speech: SpeechInput) -> None:
    assert prepare(speech).rows["text"].tobytes().decode() == speech.text


def test_half_a_surrogate_pair_in_text_becomes_a_question_mark() -> None:
    assert prepare(SpeechInput("a\ud800b")).rows["text"].tobytes() == b"a?b"
    document = prepare(chat(user("a\ud800b"))).rows["messages"].tobytes()
    assert json.loads(document)["turns"] == [{"role": "user", "content": "a?b"}]


@pytest.mark.parametrize(
    ("task_input", "param"),
    [
        (ChatInput((user("hi"),), SamplingParams(stop=("ok", "\udfff"))), "stop"),
        (chat(ChatMessage("\ud800", "hi")), "messages"),
        (TranscriptionInput(sound(SHORTEST), prompt="\ud800"), "prompt"),
        (TranscriptionInput(sound(SHORTEST), language="\ud800"), "language"),
    ],
)
def test_half_a_surrogate_pair_in_a_parameter_is_refused(task_input: TaskInput, param: str) -> None:
    found_param, message = refusal(task_input)
    assert found_param == param
    assert "half a surrogate pair" in message


def test_a_chat_of_text_enters_at_the_thinker_as_a_json_document() -> None:
    payload = prepare(chat(ChatMessage("system", "be kind"), user("hé")))
    assert (payload.task, payload.inputs, payload.outputs) == ("chat", TEXT, TEXT)
    assert payload.params == RequestParams(sampling=SamplingParams(max_tokens=7, seed=3))
    assert json.loads(payload.rows["messages"].tobytes())["turns"] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hé"},
    ]
    assert payload.whole == {}


def test_a_chat_with_audio_out_is_spoken_with_the_seed_of_its_sampling() -> None:
    payload = prepare(chat(user("hi"), audio_out=True, speed=2.0))
    assert payload.outputs == TEXT | AUDIO
    assert payload.params.speech == SpeechParams(voice="heart", speed=2.0, seed=3)


def test_spoken_turns_become_one_run_of_samples_and_their_lengths() -> None:
    first, second = sound(SHORTEST), sound(500, start=1000).astype(np.float64)
    payload = prepare(chat(user("", first), ChatMessage("assistant", "yes?"), user("and this:", second)))
    assert (payload.inputs, payload.outputs) == (TEXT | AUDIO, TEXT)
    np.testing.assert_array_equal(payload.rows["audio"], [*range(SHORTEST), *range(1000, 1500)])
    assert set(payload.rows) == {"audio"} and payload.rows["audio"].dtype == np.float32
    assert payload.whole["turn_samples"].tolist() == [SHORTEST, 500]
    assert payload.whole["turn_samples"].dtype == np.int64
    assert json.loads(payload.whole["messages"].tobytes())["turns"] == [
        {"role": "user", "spoken": True},
        {"role": "assistant", "content": "yes?"},
        {"role": "user", "content": "and this:", "spoken": True},
    ]


def test_the_parts_of_a_turn_are_its_lines_and_one_run_of_samples() -> None:
    parts = ("hi", Sound(sound(SHORTEST)), "there", Sound(sound(SHORTEST)))
    payload = prepare(chat(ChatMessage("user", parts)))
    assert payload.whole["turn_samples"].tolist() == [2 * SHORTEST]
    assert json.loads(payload.whole["messages"].tobytes())["turns"] == [
        {"role": "user", "content": "hi\nthere", "spoken": True},
    ]


@pytest.mark.parametrize("part", [Picture(np.zeros((2, 2, 3), np.uint8)), Video(np.zeros((1, 2, 2, 3), np.uint8), 1.0)])
def test_what_is_to_be_seen_is_refused_as_a_modality(part: Picture | Video) -> None:
    with pytest.raises(UnsupportedModalityError, match="sees neither"):
        prepare(chat(ChatMessage("user", ("what is this?", part))))


@pytest.mark.parametrize(
    ("conversation", "param", "message"),
    [
        (chat(), "messages", "`messages` is empty"),
        (chat(user("")), "messages", "empty or blank"),
        (chat(user(" "), ChatMessage("assistant", "\n")), "messages", "empty or blank"),
        (chat(user("x" * 15), user("y" * 6)), "messages", "21 characters"),
        (chat(user("x" * 21, sound(SHORTEST))), "messages", "21 characters"),
        (chat(user("hi", sound(SHORTEST - 1))), "messages", "shorter than 20 ms"),
        (chat(user("hi"), audio_out=True, speed=5.0), "speed", "from 0.25 to 4"),
    ],
)
def test_a_chat_that_cannot_be_answered_is_refused(conversation: ChatInput, param: str, message: str) -> None:
    found_param, found_message = refusal(conversation)
    assert found_param == param
    assert message in found_message


def test_a_transcription_takes_the_samples_as_they_are() -> None:
    payload = prepare(TranscriptionInput(sound(LONGEST), "en", "before", 0.5))
    assert (payload.task, payload.inputs, payload.outputs) == ("transcription", AUDIO, TEXT)
    assert payload.params == RequestParams(transcription=TranscriptionParams("en", "before", 0.5))
    np.testing.assert_array_equal(payload.rows["audio"], np.arange(LONGEST))
    assert (set(payload.rows), payload.whole) == ({"audio"}, {})


@pytest.mark.parametrize(
    ("audio", "message"),
    [
        (sound(0), "shorter than 20 ms"),
        (sound(SHORTEST - 1), "shorter than 20 ms"),
        (np.zeros((2, 400), np.float32), "must be mono, [samples], and is 2x400"),
    ],
)
def test_audio_that_is_too_short_or_not_mono_is_refused(audio: np.ndarray, message: str) -> None:
    param, found = refusal(TranscriptionInput(audio))
    assert param == "file"
    assert message in found


def test_audio_over_the_limit_is_too_large() -> None:
    param, message = refusal(TranscriptionInput(sound(LONGEST + 1)), RequestTooLargeError)
    assert param == "file"
    assert "at most 2 s are allowed (server.max_audio_s)" in message
    assert refusal(chat(user("", sound(LONGEST + 1))), RequestTooLargeError)[0] == "messages"


def test_the_shortest_audio_is_taken() -> None:
    assert len(prepare(TranscriptionInput(sound(SHORTEST))).rows["audio"]) == SHORTEST


@pytest.mark.parametrize(("language", "prompt", "param"), [("x" * 17, "", "language"), ("", "x" * 2_001, "prompt")])
def test_parameters_of_a_transcription_that_are_too_long_are_refused(language: str, prompt: str, param: str) -> None:
    assert refusal(TranscriptionInput(sound(SHORTEST), language, prompt))[0] == param
