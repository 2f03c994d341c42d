"""LiveKit agents' OpenAI plugin against the server at argv[1]: speak argv[2] as raw bytes and as events, then hear it.

Runs in LiveKit's own environment. Prints one JSON object: seconds of audio of both ways, and the words heard.
"""

import asyncio
import json
import sys

from livekit import rtc
from livekit.plugins import openai

AS_BYTES, AS_EVENTS = "tts-1", "gpt-4o-mini-tts"
"""The plugin asks for events of every model but tts-1."""


async def speak(url: str, model: str, text: str) -> list[rtc.AudioFrame]:
    tts = openai.TTS(model=model, voice="alloy", base_url=url, api_key="none")
    try:
        return [event.frame async for event in tts.synthesize(text)]
    finally:
        await tts.aclose()


async def hear(url: str, frames: list[rtc.AudioFrame]) -> str:
    stt = openai.STT(base_url=url, api_key="none")
    try:
        return (await stt.recognize(frames)).alternatives[0].text
    finally:
        await stt.aclose()


async def main(url: str, text: str) -> None:
    spoken = {model: await speak(url, model, text) for model in (AS_BYTES, AS_EVENTS)}
    seconds = {model: sum(frame.duration for frame in frames) for model, frames in spoken.items()}
    heard = {model: await hear(url, frames) for model, frames in spoken.items()}
    print(json.dumps({"seconds": seconds, "heard": heard}))


asyncio.run(main(f"{sys.argv[1]}/v1", sys.argv[2]))
