"""What the listener makes of faster-whisper's segments."""

from types import SimpleNamespace

from antiphon.models.voice.listener import segment_of


def test_times_do_not_lie_behind_the_end_of_the_audio():
    words = [SimpleNamespace(word=" Hello", start=0.0, end=0.56), SimpleNamespace(word=" there.", start=0.56, end=1.5)]
    heard = SimpleNamespace(text=" Hello there.", start=0.0, end=2.0, words=words)
    heard.seek, heard.tokens, heard.temperature = 0, [1], 0.0
    heard.avg_logprob, heard.compression_ratio, heard.no_speech_prob = -0.5, 0.6, 0.1
    segment = segment_of(heard, "en", 1.375)
    assert (segment.start_s, segment.end_s) == (0.0, 1.375)
    assert [(word.start_s, word.end_s) for word in segment.words] == [(0.0, 0.56), (0.56, 1.375)]
