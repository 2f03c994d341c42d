"""What the voice pipeline says is what it was told to say: heard by its own listener, sample by sample by us."""

import asyncio

import httpx
import numpy as np
import pytest

from antiphon.clauses import ClauseSplitter
from antiphon.models.voice.acoustic import AcousticModel
from antiphon.models.voice.vocoder import StreamingVocoder
from tests.wav import wav_of
from tests.words import word_errors, words

SENTENCES = (
    "The weather will be fine tomorrow afternoon.",
    "Please put the book back on the table.",
    "My brother lives in a small house near the river.",
    "She bought three apples and a loaf of bread.",
    "The train to London leaves at seven o'clock.",
    "He opened the window because the room was hot.",
    "We are going to visit our friends next weekend.",
    "The children played in the garden until dark.",
    "Could you tell me where the station is?",
    "A good teacher answers every question with patience.",
    "The old man walked slowly along the beach.",
    "I have never seen such a beautiful picture.",
    "They finished their work before lunch.",
    "Water boils faster at the top of a mountain.",
    "The doctor said that she needs more sleep.",
    "Our team won the last game of the season.",
    "You should always check the oil before a long drive.",
    "The museum is closed on Monday morning.",
    "Music helps me think when I am tired.",
    "The little dog followed the boy to school.",
)
RATE = 24_000
LONG_TEXT = "When the sun went down, the fishermen came home. They had caught nothing, but nobody was sad! Why not?"


@pytest.fixture(scope="module")
def http(voice_server):
    with httpx.Client(base_url=voice_server.url, timeout=120) as client:
        yield client


def speak(http: httpx.Client, text: str, **wishes) -> np.ndarray:
    """[num_samples] float32 in [-1, 1); always the same ones, so that they are always heard alike."""
    body = {"model": "voice", "input": text, "response_format": "pcm", "seed": 1, **wishes}
    response = http.post("/v1/audio/speech", json=body)
    assert response.status_code == 200, response.text
    return np.frombuffer(response.content, "<i2").astype(np.float32) / 32768


def listen(http: httpx.Client, samples: np.ndarray) -> str:
    file = wav_of((samples * 32767).astype("<i2").tobytes(), RATE)
    response = http.post(
        "/v1/audio/transcriptions", data={"model": "whisper-1", "language": "en"}, files={"file": file}
    )
    assert response.status_code == 200, response.text
    return response.json()["text"]


def longest_silence_s(samples: np.ndarray) -> float:
    """The longest stretch below -60 dB, in windows of 10 ms."""
    windows = samples[: len(samples) // 240 * 240].reshape(-1, 240)
    quiet = np.sqrt(np.mean(windows**2, axis=1)) < 1e-3
    longest = run = 0
    for is_quiet in quiet:
        run = run + 1 if is_quiet else 0
        longest = max(longest, run)
    return longest * 0.01


def test_twenty_sentences_are_understood_by_the_listener(http):
    errors = 0
    for sentence in SENTENCES:
        samples = speak(http, sentence)
        assert np.abs(samples).max() < 0.999, f"clipped: {sentence}"
        assert longest_silence_s(samples) < 1.0, f"a hole in: {sentence}"
        errors += word_errors(sentence, listen(http, samples))
    assert errors <= 0.1 * sum(len(words(sentence)) for sentence in SENTENCES)


def test_streamed_audio_equals_the_vocoder_in_one_shot(http):
    streamed = speak(http, LONG_TEXT, seed=7)
    splitter = ClauseSplitter()
    clauses = [*splitter.push(LONG_TEXT), *splitter.finish()]
    acoustic = AcousticModel.load(num_threads=1)
    frames = [acoustic.frames(acoustic.phoneme_ids(clause), 1.0) for clause in clauses]
    params, ends = (np.concatenate(arrays) for arrays in zip(*frames, strict=True))
    one_shot = StreamingVocoder(7).push(params, ends)
    assert len(streamed) == len(one_shot)
    assert np.abs(streamed - one_shot).max() < 1e-3


def test_no_jump_at_any_seam(http):
    samples = speak(http, LONG_TEXT, seed=3)
    steps = np.abs(np.diff(samples))
    seams = np.arange(16 * 300, len(samples) - 1, 300)  # every border of a frame is a border of some chunk
    inside = np.delete(steps, np.concatenate([seams - 1, seams]))
    assert steps[seams - 1].max() <= 1.05 * inside.max()


def test_thirty_two_concurrent_requests_never_mix(voice_server, http):
    numbers = ("one", "two", "three", "four", "five", "six", "seven", "eight")
    things = ("apples", "horses", "gardens", "windows")
    texts = [f"There are {number} {thing} in this picture." for number in numbers for thing in things]

    async def speak_all() -> list[bytes]:
        async with httpx.AsyncClient(base_url=voice_server.url, timeout=120) as client:
            bodies = [{"model": "voice", "input": text, "response_format": "pcm", "seed": 1} for text in texts]
            answers = await asyncio.gather(*(client.post("/v1/audio/speech", json=body) for body in bodies))
        assert [answer.status_code for answer in answers] == [200] * len(texts)
        return [answer.content for answer in answers]

    for text, pcm in zip(texts, asyncio.run(speak_all()), strict=True):
        heard = listen(http, np.frombuffer(pcm, "<i2").astype(np.float32) / 32768)
        errors = {other: word_errors(other, as_words(heard)) for other in texts}
        assert errors[text] == min(errors.values()), f"{text!r} was heard as {heard!r}"
        assert errors[text] <= 1


def as_words(heard: str) -> str:
    """Digits as the words that were spoken: whisper writes small numbers either way."""
    digits = dict(zip("12345678", ("one", "two", "three", "four", "five", "six", "seven", "eight"), strict=True))
    return " ".join(digits.get(word, word) for word in words(heard))
