"""The real detector on real speech: our own voice between silences and noises."""

import base64

import numpy as np
import pytest

from antiphon.models.voice.acoustic import AcousticModel
from antiphon.models.voice.vocoder import StreamingVocoder
from antiphon.server.realtime.ears import Ears, SpeechStarted, SpeechStopped
from antiphon.server.realtime.turn_detection import ServerVad
from antiphon.server.realtime.vad import SileroVad, load_vad
from antiphon.server.realtime.wire_audio import WireFormat
from tests.unit.server.realtime.talking import pcm

SENTENCE = "The children are playing in the garden."


@pytest.fixture(scope="module")
def speech() -> bytes:
    """24 kHz pcm of a sentence."""
    voice = AcousticModel.load(num_threads=1)
    params, ends = voice.frames(voice.phoneme_ids(SENTENCE), 1.0)
    samples = StreamingVocoder(1).push(params, ends)
    return (np.clip(samples, -1, 1) * 32_767).astype("<i2").tobytes()


def hearing() -> Ears:
    network = load_vad()
    assert network is not None, "the tests install silero-vad"
    ears = Ears(SileroVad(network), 30.0)
    ears.configure(WireFormat.PCM, ServerVad())
    return ears


def noise(ms: int, level: float) -> bytes:
    samples = np.random.default_rng(1).standard_normal(ms * 24) * level
    return (np.clip(samples, -1, 1) * 32_767).astype("<i2").tobytes()


def silence(ms: int) -> bytes:
    return base64.b64decode(pcm(ms))


def test_two_sentences_are_two_turns_that_hold_them_whole(speech):
    ears = hearing()
    data = silence(1_000) + speech + silence(1_000) + speech + silence(1_000)
    heard = [change for at in range(0, len(data), 4_800) for change in ears.append(data[at : at + 4_800])]
    assert [type(change) for change in heard] == [SpeechStarted, SpeechStopped] * 2
    loud = np.flatnonzero(np.abs(np.frombuffer(speech, "<i2")) > 1_000) / 24  # ms
    length_ms = len(speech) / 48
    for turn, at_ms in zip((heard[:2], heard[2:]), (1_000, 2_000 + length_ms), strict=True):
        started, stopped = turn
        assert at_ms + loud[0] - 500 < started.start_ms < at_ms + loud[0]
        assert at_ms + loud[-1] + 300 < stopped.end_ms < at_ms + loud[-1] + 900
        assert abs(len(stopped.samples) / 16 - (stopped.end_ms - started.start_ms)) < 2


@pytest.mark.parametrize("level", [0.0, 0.003, 0.1], ids=["silence", "hiss", "loud noise"])
def test_what_is_no_speech_begins_no_turn(level):
    assert hearing().append(noise(5_000, level)) == []


def test_two_streams_do_not_hear_each_other(speech):
    talking, quiet = hearing(), hearing()
    heard = []
    for at in range(0, len(speech), 4_800):
        heard += talking.append(speech[at : at + 4_800])
        assert quiet.append(silence(100)) == []
    assert [type(change) for change in heard] == [SpeechStarted]
