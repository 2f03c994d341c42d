"""Speech to text through the whole runtime: what was spoken is what is written down."""

import re

import openai
import pytest

SENTENCE = "The weather is nice today, and the children play in the garden."


@pytest.fixture
def client(voice_server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{voice_server.url}/v1", api_key="none", max_retries=0, timeout=120)


def spoken(client: openai.OpenAI, format: str) -> tuple[str, bytes]:
    data = client.audio.speech.create(model="tts-1", voice="alloy", input=SENTENCE, response_format=format).read()
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
