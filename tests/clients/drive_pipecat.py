"""Pipecat's OpenAI services against the server at argv[1]: speak argv[2], then hear what was spoken.

Runs in pipecat's own environment. Prints one JSON object: seconds of audio, the words heard, errors.
"""

import asyncio
import json
import sys

from pipecat.frames.frames import (
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.worker import PipelineParams
from pipecat.services.openai.stt import OpenAISTTService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.tests.utils import SleepFrame, run_test

RATE = 24_000
PIECE_BYTES = RATE * 2 // 50
PARAMS = PipelineParams(audio_in_sample_rate=RATE, audio_out_sample_rate=RATE)


async def speak(url: str, text: str) -> tuple[bytes, list[str]]:
    service = OpenAITTSService(api_key="none", base_url=url, settings=OpenAITTSService.Settings(voice="nova"))
    down, up = await run_test(service, frames_to_send=[TTSSpeakFrame(text)], pipeline_params=PARAMS)
    return b"".join(frame.audio for frame in down if isinstance(frame, TTSAudioRawFrame)), errors_of([*down, *up])


async def hear(url: str, pcm: bytes) -> tuple[str, list[str]]:
    service = OpenAISTTService(api_key="none", base_url=url)
    pieces = [pcm[at : at + PIECE_BYTES] for at in range(0, len(pcm), PIECE_BYTES)]
    frames = [
        VADUserStartedSpeakingFrame(),
        *(InputAudioRawFrame(piece, RATE, 1) for piece in pieces),
        SleepFrame(0.2),
        VADUserStoppedSpeakingFrame(),
    ]
    down, up = await run_test(service, frames_to_send=frames, pipeline_params=PARAMS)
    heard = " ".join(frame.text for frame in down if isinstance(frame, TranscriptionFrame))
    return heard, errors_of([*down, *up])


def errors_of(frames: list[Frame]) -> list[str]:
    return [frame.error for frame in frames if isinstance(frame, ErrorFrame)]


async def main(url: str, text: str) -> None:
    pcm, speak_errors = await speak(url, text)
    heard, hear_errors = await hear(url, pcm)
    print(json.dumps({"seconds": len(pcm) / 2 / RATE, "heard": heard, "errors": speak_errors + hear_errors}))


asyncio.run(main(f"{sys.argv[1]}/v1", sys.argv[2]))
