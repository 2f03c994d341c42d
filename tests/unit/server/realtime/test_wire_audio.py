"""The formats that realtime clients speak and hear, against FFmpeg's own G.711 and a tone's shape."""

import av
import numpy as np
import pytest

from antiphon.messages.client import AudioChunk
from antiphon.server.realtime.wire_audio import WireFormat, WireInput, WireOutput, _g711_bytes, _g711_levels

CODECS = {WireFormat.PCMU: "pcm_mulaw", WireFormat.PCMA: "pcm_alaw"}


def ffmpeg_decoded(data: bytes, codec: str) -> np.ndarray:
    context = av.CodecContext.create(codec, "r")
    context.sample_rate = 8_000
    context.layout = "mono"
    frames = context.decode(av.Packet(data))
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames])


def tone(rate: int, seconds: float = 1.0) -> np.ndarray:
    return (np.sin(2 * np.pi * 440 * np.arange(int(rate * seconds)) / rate) * 12_000).astype("<i2")


@pytest.mark.parametrize("format", CODECS)
def test_every_g711_byte_means_what_ffmpeg_reads(format):
    every = bytes(range(256))
    assert np.array_equal(_g711_levels(format), ffmpeg_decoded(every, CODECS[format]))


@pytest.mark.parametrize("format", CODECS)
def test_g711_is_written_so_that_nothing_is_lost_of_what_it_can_say(format):
    levels = _g711_levels(format)
    again = np.frombuffer(_g711_bytes(levels, format), np.uint8)
    assert np.array_equal(levels[again], levels)
    wild = np.arange(-32_768, 32_768, dtype=np.int32)
    heard = levels[np.frombuffer(_g711_bytes(wild, format), np.uint8)].astype(np.int32)
    assert (np.abs(heard - wild) <= np.maximum(16, np.abs(wild) / 25 + 8)).all()


@pytest.mark.parametrize("format", list(WireFormat))
def test_a_tone_comes_in_at_the_rate_that_models_hear_whatever_its_pieces(format):
    sent = tone(format.rate)
    data = sent.tobytes() if format is WireFormat.PCM else _g711_bytes(sent, format)
    wire = WireInput(format)
    pieces = [wire.decode(data[start : start + 333]) for start in range(0, len(data), 333)]
    heard = np.concatenate([*pieces, wire.decode(b"", last=True)])
    assert len(heard) == 16_000
    expected = tone(16_000).astype(np.float32) / 32_768
    assert np.abs(heard[400:-400] - expected[400:-400]).max() < 0.03


@pytest.mark.parametrize("format", list(WireFormat))
def test_a_tone_goes_out_whole_and_without_seams(format):
    made = tone(24_000).tobytes()
    wire = WireOutput(format)
    data = b"".join(wire.encode(AudioChunk(made[at : at + 9_600], 24_000)) for at in range(0, len(made), 9_600))
    data += wire.finish()
    if format is WireFormat.PCM:
        assert data == made
        return
    heard = _g711_levels(format)[np.frombuffer(data, np.uint8)].astype(np.float32)
    assert len(heard) == 8_000
    assert np.abs(heard[400:-400] - tone(8_000)[400:-400]).max() < 800


def test_a_chunk_at_another_rate_leaves_at_the_formats():
    wire = WireOutput(WireFormat.PCM)
    data = wire.encode(AudioChunk(tone(16_000).tobytes(), 16_000)) + wire.finish()
    assert len(data) == 48_000
