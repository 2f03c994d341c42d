"""Samples as a file, for tests that have something heard."""

import io
import wave


def wav_of(pcm: bytes, rate: int = 24_000) -> bytes:
    """A wav file of s16le mono samples."""
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(pcm)
    return target.getvalue()
