"""`antiphon transcribe`: write down what an audio file says, without a server.

In: an audio file. Out: its text. Does not know: HTTP.
"""

import asyncio
from pathlib import Path

import click

from antiphon import env
from antiphon.config.deploy import ServerDeploy
from antiphon.engine import Engine
from antiphon.errors import InvalidRequestError
from antiphon.messages.client import Segment
from antiphon.messages.tasks import TranscriptionInput
from antiphon.process import configure_logging


@click.command("transcribe")
@click.argument("file")
@click.option("--language", default="", help="Language code such as en; detected if not given.")
@click.option("--timestamps", is_flag=True, help="One line per segment, with its times in seconds.")
def command(file: str, language: str, timestamps: bool) -> None:
    """Write down the speech in FILE."""
    from antiphon.server.audio_decode import decode_audio

    env.set_default_log_level("WARNING")
    configure_logging("transcribe")
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"cannot read {file}: {error.strerror}") from error
    audio = decode_audio(data, max_duration_s=ServerDeploy().max_audio_s)
    segments = asyncio.run(_transcribe(TranscriptionInput(audio, language=language)))
    if timestamps:
        for segment in segments:
            click.echo(f"{segment.start_s:8.2f} {segment.end_s:8.2f}  {segment.text.strip()}")
    else:
        click.echo("".join(segment.text for segment in segments).strip())


async def _transcribe(task: TranscriptionInput) -> list[Segment]:
    async with Engine("voice", tasks=("transcription",)) as engine:
        messages = [message async for message in engine.generate("transcription", task)]
        return [message.output for message in messages if isinstance(message.output, Segment)]
