"""Turns in a stream of audio: where they begin and end, what is kept, and how much."""

import base64

import numpy as np
import pytest

from antiphon.errors import InvalidRequestError
from antiphon.server.realtime.ears import Ears, SpeechStarted, SpeechStopped
from antiphon.server.realtime.turn_detection import SemanticVad, ServerVad, TurnDetection
from antiphon.server.realtime.wire_audio import WireFormat
from tests.unit.server.realtime.talking import LoudIsSpeech, pcm


def sound(ms: int, level: float = 0.5) -> bytes:
    return base64.b64decode(pcm(ms, level))


def silence(ms: int) -> bytes:
    return sound(ms, 0.0)


def listening(turns: TurnDetection | None = ServerVad(), max_turn_s: float = 10.0) -> Ears:  # noqa: B008 (frozen)
    ears = Ears(LoudIsSpeech(), max_turn_s)
    ears.configure(WireFormat.PCM, turns)
    return ears


@pytest.mark.parametrize("piece_bytes", [960, 4_801, 200_000], ids=["20 ms", "odd", "at once"])
def test_the_same_turns_are_heard_whatever_the_pieces(piece_bytes):
    data = silence(1_000) + sound(800) + silence(1_000) + sound(600) + silence(1_000)
    ears = listening()
    heard = [change for at in range(0, len(data), piece_bytes) for change in ears.append(data[at : at + piece_bytes])]
    assert [type(change) for change in heard] == [SpeechStarted, SpeechStopped] * 2
    starts = [change.start_ms for change in heard if isinstance(change, SpeechStarted)]
    ends = [change.end_ms for change in heard if isinstance(change, SpeechStopped)]
    assert np.abs(np.array(starts) - [700, 2_500]).max() < 64
    assert np.abs(np.array(ends) - [2_300, 3_900]).max() < 64
    for start, change in zip(starts, heard[1::2], strict=True):
        assert abs(len(change.samples) / 16 - (change.end_ms - start)) < 2


def test_a_click_is_no_speech_and_a_short_pause_no_end():
    ears = listening()
    assert ears.append(silence(320) + sound(48) + silence(640)) == []
    heard = ears.append(sound(640) + silence(320) + sound(640))
    assert [type(change) for change in heard] == [SpeechStarted]
    (stopped,) = ears.append(silence(640))
    assert len(stopped.samples) / 16 > 640 + 320 + 640


def test_the_settings_say_how_long_silence_is_and_how_much_is_heard_in_front():
    ears = listening(ServerVad(prefix_padding_ms=0, silence_duration_ms=1_000))
    started, *rest = ears.append(silence(1_000) + sound(640) + silence(900))
    assert abs(started.start_ms - 1_000) < 64
    assert rest == []
    assert len(ears.append(silence(200))) == 1


def test_the_more_eager_semantic_vad_is_the_shorter_is_the_silence_that_ends_a_turn():
    waited_ms = {}
    for eagerness in ("high", "medium", "auto", "low"):
        ears = listening(SemanticVad(eagerness))
        ears.append(sound(640))
        (stopped,) = ears.append(silence(2_000))
        waited_ms[eagerness] = stopped.end_ms - 640
    assert waited_ms == pytest.approx({"high": 400, "medium": 800, "auto": 800, "low": 1_600}, abs=40)


def test_a_turn_that_takes_too_long_ends():
    ears = listening(max_turn_s=2.0)
    heard = ears.append(sound(5_000))
    assert [type(change) for change in heard] == [SpeechStarted, SpeechStopped] * 2 + [SpeechStarted]
    assert all(len(change.samples) <= 2 * 16_000 + 512 for change in heard if isinstance(change, SpeechStopped))


def test_silence_costs_no_memory():
    ears = listening()
    for _ in range(100):
        ears.append(silence(1_000))
    assert len(ears.commit()) < 16_000


def test_without_turn_detection_everything_is_kept_up_to_the_longest_turn():
    ears = listening(None, max_turn_s=2.0)
    assert ears.append(sound(1_500)) == []
    with pytest.raises(InvalidRequestError) as refused:
        ears.append(sound(600))
    assert refused.value.code == "input_audio_buffer_full"
    assert "server.realtime_max_turn_s" in refused.value.message
    assert abs(len(ears.commit()) - 24_000) < 16
    ears.append(sound(1_900))


def test_too_little_is_no_turn():
    ears = listening(None)
    ears.append(sound(90))
    with pytest.raises(InvalidRequestError) as refused:
        ears.commit()
    assert refused.value.code == "input_audio_buffer_commit_empty"


def test_a_commit_in_the_middle_of_speech_ends_the_turn_there():
    ears = listening()
    assert len(ears.append(sound(1_000))) == 1
    assert abs(len(ears.commit()) / 16 - 1_000) < 32
    assert ears.append(silence(1_000)) == []


def test_turning_detection_off_keeps_what_was_said():
    ears = listening()
    ears.append(sound(1_000))
    ears.configure(WireFormat.PCM, None)
    ears.append(sound(1_000))
    assert abs(len(ears.commit()) / 16 - 2_000) < 32


def test_a_server_without_a_detector_hears_no_turns():
    ears = Ears(None, 10.0)
    ears.configure(WireFormat.PCM, ServerVad())
    assert ears.append(sound(1_000) + silence(1_000)) == []
    assert abs(len(ears.commit()) / 16 - 2_000) < 2
