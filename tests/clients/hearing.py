"""What was spoken, as the server's own listener hears it."""

import httpx

from tests.process.conftest import Server
from tests.words import word_errors, words

RATE = 24_000


def assert_says(server: Server, file: bytes, sentence: str) -> None:
    """The audio file says the whole sentence."""
    answer = httpx.post(
        f"{server.url}/v1/audio/transcriptions", data={"model": "voice"}, files={"file": file}, timeout=120
    )
    assert_same(sentence, answer.json()["text"])


def assert_same(sentence: str, heard: str) -> None:
    """At most one word in five is wrong, and the last one is right: it is the one that a cut-off answer loses."""
    assert word_errors(sentence, heard) <= len(words(sentence)) // 5, f"{sentence!r} was heard as {heard!r}"
    assert words(sentence)[-1] == words(heard)[-1]
