"""Speech to text through the whole runtime: what was spoken is what is written down."""

import re

import openai
import pytest

SENTENCE = "The weather is nice today, and the children play in the garden."


@pytest.fixture
def client(voice_server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{voice_server.url}/v1", api_key="none", max_retries=0, timeout=120)


def spoken(client: openai.OpenAI, format: str) -> tuple[str, bytes]:
    """A file of one seed: it is always heard alike."""
    wishes = {"response_format": format, "extra_body": {"seed": 1}}
    data = client.audio.speech.create(model="tts-1", voice="alloy", input=SENTENCE, **wishes).read()
    return f"speech.{format}", data


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


@pytest.mark.parametrize("format", ["wav", "mp3", "opus"])
def test_our_own_speech_is_written_down_word_by_word(client, format):
    transcript = client.audio.transcriptions.create(model="whisper-1", file=spoken(client, format), language="en")
    assert words(transcript.text) == words(SENTENCE)


def test_every_response_format_holds_the_words(client):
    file = spoken(client, "wav")
    for format in ("text", "srt", "vtt"):
        answer = client.audio.transcriptions.create(model="whisper-1", file=file, response_format=format)
        assert words(SENTENCE)[:5] == [w for w in words(answer) if w not in ("webvtt",)][:5]
    verbose = client.audio.transcriptions.create(model="whisper-1", file=file, response_format="verbose_json")
    assert words(verbose.text) == words(SENTENCE)
    assert verbose.language == "en"
    assert 2 < verbose.duration < 8
    assert words(" ".join(segment.text for segment in verbose.segments)) == words(SENTENCE)
    assert 0 <= verbose.segments[0].start < verbose.segments[-1].end <= verbose.duration + 1


def test_words_have_times_in_their_order(client):
    answer = client.audio.transcriptions.create(
        model="whisper-1",
        file=spoken(client, "wav"),
        language="en-US",
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    )
    assert [word for timed in answer.words for word in words(timed.word)] == words(SENTENCE)
    times = [time for timed in answer.words for time in (timed.start, timed.end)]
    assert times == sorted(times)
    assert 0 <= times[0] < times[-1] <= answer.duration + 0.5
    (segment, *_) = answer.segments
    assert segment.tokens and segment.avg_logprob < 0 <= segment.no_speech_prob < 0.5


def test_a_streamed_transcript_ends_with_the_whole(client):
    events = list(
        client.audio.transcriptions.create(
            model="whisper-1", file=spoken(client, "wav"), language="en", stream=True, prompt="A walk in the park."
        )
    )
    *deltas, done = events
    assert {event.type for event in deltas} == {"transcript.text.delta"}
    assert done.type == "transcript.text.done"
    assert "".join(event.delta for event in deltas) == done.text
    assert words(done.text) == words(SENTENCE)


def test_a_translation_is_english(client):
    answer = client.audio.translations.create(model="whisper-1", file=spoken(client, "mp3"), response_format="text")
    assert words(answer) == words(SENTENCE)


def test_an_unknown_language_is_the_clients_error_whole_and_streamed(client):
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.audio.transcriptions.create(
                model="whisper-1", file=spoken(client, "wav"), language="xx", stream=stream
            )
        assert caught.value.param == "language"
