"""Pipecat's realtime service with its default settings, and transcripts, against the server at argv[1].

It is told argv[2], its answer is heard, and the next answer is interrupted.

Runs in pipecat's own environment. Prints one JSON object: the words heard, the answers with their seconds, errors.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator

from pipecat.frames.frames import (
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    LLMFullResponseEndFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSTextFrame,
)
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.pipeline.worker import PipelineParams
from pipecat.services.openai.realtime.events import (
    AudioConfiguration,
    AudioInput,
    InputAudioTranscription,
    SessionProperties,
)
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.tests.utils import SleepFrame, run_test

RATE = 24_000
PIECE_BYTES = RATE * 2 // 50
PARAMS = PipelineParams(audio_in_sample_rate=RATE, audio_out_sample_rate=RATE)
TIMEOUT_S = 120.0
STEP_S = 0.05


async def speech(url: str, text: str) -> bytes:
    service = OpenAITTSService(api_key="none", base_url=url, settings=OpenAITTSService.Settings(voice="nova"))
    down, _ = await run_test(service, frames_to_send=[TTSSpeakFrame(text)], pipeline_params=PARAMS)
    return b"".join(frame.audio for frame in down if isinstance(frame, TTSAudioRawFrame))


class Told(BaseObserver):
    """What the service has said so far: of every answer its words and bytes of sound."""

    def __init__(self, service: OpenAIRealtimeLLMService) -> None:
        super().__init__()
        self.service = service
        self.answers = [["", 0]]
        self.num_ended = 0
        self.heard: list[str] = []
        self.errors: list[str] = []

    async def on_push_frame(self, data: FramePushed) -> None:
        if data.source is not self.service:
            return
        match data.frame:
            case TTSTextFrame(text=text):
                self.answers[-1][0] += text
            case TTSAudioRawFrame(audio=audio):
                self.answers[-1][1] += len(audio)
            case LLMFullResponseEndFrame() if self.answers[-1] != ["", 0]:
                self.answers.append(["", 0])
            case TranscriptionFrame(text=text):
                self.heard.append(text)
            case ErrorFrame(error=error):
                self.errors.append(error)


def wait_until(is_true: Callable[[], bool]) -> Iterator[Frame]:
    """Frames that let time pass."""
    for _ in range(int(TIMEOUT_S / STEP_S)):
        if is_true():
            return
        yield SleepFrame(STEP_S)
    raise TimeoutError


def say(pcm: bytes) -> Iterator[Frame]:
    for at in range(0, len(pcm), PIECE_BYTES):
        yield InputAudioRawFrame(pcm[at : at + PIECE_BYTES], RATE, 1)


def conversation(told: Told, question: bytes, order: bytes) -> Iterator[Frame]:
    """The question and its answer; then an order whose answer is interrupted by the question."""
    silence = bytes(3 * RATE)
    yield from say(question + silence)
    yield from wait_until(lambda: len(told.answers) == 2)
    yield from say(order + silence)
    yield from wait_until(lambda: told.answers[1][1] > 0)
    yield from say(question + silence)
    yield from wait_until(lambda: len(told.answers) > 2 and told.answers[2][1] > 0)


async def main(url: str, text: str) -> None:
    question, order = await speech(url, text), await speech(url, "Tell me a very long story about the sea.")
    heard = SessionProperties(audio=AudioConfiguration(input=AudioInput(transcription=InputAudioTranscription())))
    service = OpenAIRealtimeLLMService(
        api_key="none",
        base_url=f"{url.replace('http', 'ws')}/realtime",
        settings=OpenAIRealtimeLLMService.Settings(
            session_properties=heard, system_instruction="Answer in one short sentence."
        ),
    )
    told = Told(service)
    frames = conversation(told, question, order)
    await run_test(service, frames_to_send=frames, observers=[told], pipeline_params=PARAMS)
    answers = [{"text": text, "seconds": num_bytes / 2 / RATE} for text, num_bytes in told.answers]
    print(json.dumps({"heard": told.heard, "answers": answers, "errors": told.errors}))


asyncio.run(main(f"{sys.argv[1]}/v1", sys.argv[2]))
