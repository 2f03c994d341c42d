"""LiveKit agents' realtime model with its default settings against the server at argv[1].

It is told argv[2], its answer is heard, and the next answer is interrupted.

Runs in LiveKit's own environment. Prints one JSON object: the words heard, the answers with their seconds, errors.
"""

import asyncio
import json
import sys

from livekit import rtc
from livekit.agents.llm import GenerationCreatedEvent, MessageGeneration
from livekit.plugins import openai

RATE = 24_000
TIMEOUT_S = 120


async def speech(url: str, text: str) -> list[rtc.AudioFrame]:
    tts = openai.TTS(model="tts-1", voice="alloy", base_url=url, api_key="none")
    try:
        return [event.frame async for event in tts.synthesize(text)]
    finally:
        await tts.aclose()


def silence(seconds: float) -> rtc.AudioFrame:
    return rtc.AudioFrame.create(RATE, 1, int(seconds * RATE))


async def answer(generation: GenerationCreatedEvent) -> dict:
    """The one message of a whole answer."""
    [message] = [message async for message in generation.message_stream]
    seconds = sum([frame.duration async for frame in message.audio_stream])
    return {"text": "".join([text async for text in message.text_stream]), "seconds": seconds}


async def first_sound(generation: GenerationCreatedEvent) -> MessageGeneration:
    """The message of an answer that has begun to sound."""
    message = await anext(aiter(generation.message_stream))
    await anext(aiter(message.audio_stream))
    return message


async def talk(url: str, question: list[rtc.AudioFrame]) -> dict:
    model = openai.realtime.RealtimeModel(base_url=url, api_key="none")
    session = model.session()
    answers: asyncio.Queue[GenerationCreatedEvent] = asyncio.Queue()
    heard: asyncio.Queue[str] = asyncio.Queue()
    errors: list[str] = []
    interrupted = asyncio.Event()
    session.on("generation_created", answers.put_nowait)
    session.on("input_speech_started", lambda _: interrupted.set())
    session.on("input_audio_transcription_completed", lambda event: heard.put_nowait(event.transcript))
    session.on("error", lambda event: errors.append(repr(event.error)))
    try:
        await session.update_instructions("Answer in one short sentence.")
        for frame in (*question, silence(1.5)):
            session.push_audio(frame)
        spoken = await answer(await answers.get())
        told = session.chat_ctx.copy()
        told.add_message(role="user", content="Tell me a very long story about the sea.")
        await session.update_chat_ctx(told)
        session.generate_reply(instructions="You like long stories with many details.")
        interrupted.clear()
        message = await first_sound(await answers.get())
        for frame in question:
            session.push_audio(frame)
        await interrupted.wait()
        session.interrupt()
        session.truncate(message_id=message.message_id, modalities=["audio", "text"], audio_end_ms=100)
        session.push_audio(silence(1.5))
        cut = "".join([text async for text in message.text_stream])
        await first_sound(await answers.get())
        return {"heard": [await heard.get(), await heard.get()], "answer": spoken, "cut": cut, "errors": errors}
    finally:
        await session.aclose()
        await model.aclose()


async def main(url: str, text: str) -> None:
    told = await asyncio.wait_for(talk(url, await speech(url, text)), TIMEOUT_S)
    print(json.dumps(told))


asyncio.run(main(f"{sys.argv[1]}/v1", sys.argv[2]))
