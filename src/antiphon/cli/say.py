"""`antiphon say`: speak a text into a file, without a server.

In: text. Out: an audio file, and TTFA and RTF on the terminal. Does not know: HTTP.
"""

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

import click

from antiphon import env
from antiphon.engine import Engine
from antiphon.errors import InvalidRequestError
from antiphon.messages.client import AudioChunk
from antiphon.messages.tasks import SpeechInput
from antiphon.process import configure_logging


@dataclass(frozen=True)
class Spoken:
    """s16le mono PCM and how long it took; times in seconds from the request."""

    pcm: bytes
    sample_rate: int
    ttfa_s: float
    total_s: float

    @property
    def duration_s(self) -> float:
        """Length of the audio."""
        return len(self.pcm) / 2 / self.sample_rate


@click.command("say")
@click.argument("text")
@click.option("-o", "--out", default="out.wav", show_default=True, help="File to write; its ending is the format.")
@click.option("--voice", default="", help="A voice of the pipeline.")
@click.option("--speed", default=1.0, show_default=True, help="0.25 to 4.")
@click.option("--seed", type=int, help="Fixes the noise: the same text gives the same audio.")
def command(text: str, out: str, voice: str, speed: float, seed: int | None) -> None:
    """Speak TEXT into a file."""
    from antiphon.server.audio_encode import AudioFormat, encode_whole

    env.set_default_log_level("WARNING")
    configure_logging("say")
    audio_format = AudioFormat.of_file_name(out)
    folder = Path(out).absolute().parent
    if not os.access(folder, os.W_OK):
        raise InvalidRequestError(f"cannot write {out}: {folder} does not exist or is not yours to write in")
    spoken = asyncio.run(_speak(SpeechInput(text, voice=voice, speed=speed, seed=seed)))
    Path(out).write_bytes(encode_whole(spoken.pcm, audio_format, spoken.sample_rate))
    click.echo(
        f"{out}: {spoken.duration_s:.2f} s of audio; TTFA {spoken.ttfa_s * 1000:.0f} ms, "
        f"RTF {spoken.total_s / spoken.duration_s:.3f}"
    )


async def _speak(speech: SpeechInput) -> Spoken:
    pcm, ttfa_s, sample_rate = bytearray(), 0.0, 0
    async with Engine("voice", tasks=("speech",)) as engine:
        began_s = time.perf_counter()
        async for message in engine.generate("speech", speech):
            if isinstance(message.output, AudioChunk):
                ttfa_s = ttfa_s or time.perf_counter() - began_s
                sample_rate = message.output.sample_rate
                pcm += message.output.pcm
        return Spoken(bytes(pcm), sample_rate, ttfa_s, time.perf_counter() - began_s)
