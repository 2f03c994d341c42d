"""Simulated pipelines served for real: every word and sample is the one that closed forms say, in every arrangement."""

import asyncio
import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import numpy as np
import pytest

from antiphon import Engine
from antiphon.messages.client import AudioChunk, ImageOutput, OutputEnd, TextDelta
from antiphon.messages.params import SamplingParams
from antiphon.messages.tasks import ChatInput, ChatMessage, ImageInput
from antiphon.models.simulated.generator import audio_codec, picture_codec
from antiphon.models.simulated.row_values import Check, request_number, text_of
from tests.process.conftest import Server, start_server
from tests.process.metrics_page import totals

NUM_REQUESTS, NUM_WORDS, NUM_TOKENS = 8, 100, 30
ROW_BYTES = 2 * 4096
FAST = (
    "stages.thinker.options.base_ms=2",
    "stages.thinker.options.per_token_ms=0.01",
    "stages.talker.options.base_ms=1",
    "stages.talker.options.per_token_ms=0",
    "stages.code2wav.options.base_ms=4",
    "stages.thinker.replicas=2",
)
ARRANGEMENTS = {
    "streamed, next lane": (),
    "streamed, both lanes": ("stages.thinker.options.hidden_states_lane=both",),
    "everything at once, next lane": ("--no-async-chunk",),
}
SPEECH = {  # pipeline -> its settings, frames of a text of ten words, samples of a frame, their rate
    "sim-qwen3-tts": (("stages.talker.options.base_ms=1", "stages.code2wav.options.base_ms=1"), 18, 1920, 24_000),
    "sim-voxtral": (("stages.generator.options.base_ms=1", "stages.tokenizer.options.base_ms=1"), 45, 1920, 24_000),
    "sim-indextts2": (("stages.gpt.options.base_ms=1", "stages.s2mel.options.base_ms=1"), 180, 441, 22_050),
}


@dataclass(frozen=True)
class Answer:
    """A streamed chat answer."""

    request_id: str
    pieces: list[str]
    pcm: bytes
    finish_reason: str
    usage: dict[str, int]


def serve(pipeline: str, settings: tuple[str, ...]) -> Server:
    options = [setting if setting.startswith("--") else f"--set={setting}" for setting in settings]
    return start_server(pipeline, *options)


def chat(server: Server, model: str, **wishes: object) -> Answer:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "word " * NUM_WORDS}],
        "modalities": ["text", "audio"],
        "audio": {"voice": "any", "format": "pcm16"},
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **wishes,
    }
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as response:
        assert response.status_code == 200, response.read()
        events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    choices = [event["choices"][0] for event in events if event["choices"]]
    pieces = [choice["delta"]["content"] for choice in choices if choice["delta"].get("content")]
    encoded = "".join(choice["delta"].get("audio", {}).get("data", "") for choice in choices)
    request_id = events[0]["id"].replace("chatcmpl-", "req-")
    return Answer(request_id, pieces, base64.b64decode(encoded), choices[-1]["finish_reason"], events[-1]["usage"])


def spoken(request_id: str, num_rows: int, samples_per_row: int) -> bytes:
    return audio_codec(samples_per_row).rows_of(request_number(request_id), 0, num_rows, ends=True).tobytes()


def raw_rows_bytes(server: Server) -> int:
    return int(totals(server).get("raw_rows_bytes_total", 0.0))


@pytest.fixture(scope="module", params=ARRANGEMENTS)
def arrangement(request: pytest.FixtureRequest) -> Iterator[tuple[str, Server]]:
    server = serve("sim-qwen3-omni", (*FAST, *ARRANGEMENTS[request.param]))
    yield request.param, server
    assert server.stop() == 0, "the server did not stop cleanly"


def test_text_and_audio_of_eight_requests_at_once_are_exact(arrangement: tuple[str, Server]) -> None:
    name, server = arrangement
    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        answers = list(pool.map(lambda _: chat(server, "sim-qwen3-omni"), range(NUM_REQUESTS)))
    assert len({answer.request_id for answer in answers}) == NUM_REQUESTS
    for answer in answers:
        assert "".join(answer.pieces) == text_of(answer.request_id, NUM_TOKENS)
        assert len(answer.pieces) > NUM_TOKENS // 2, "the text was not streamed"
        assert answer.pcm == spoken(answer.request_id, int(3.5 * NUM_TOKENS), 1920)
        assert answer.finish_reason == "length"
        counted = (answer.usage["prompt_tokens"], answer.usage["completion_tokens"])
        assert counted == (NUM_WORDS, NUM_TOKENS)
    expected = NUM_REQUESTS * (NUM_WORDS + NUM_TOKENS - 1) * ROW_BYTES if "both" in name else 0
    assert raw_rows_bytes(server) == expected


def test_an_answer_ends_where_the_client_or_the_profile_wants(arrangement: tuple[str, Server]) -> None:
    _, server = arrangement
    cut = chat(server, "sim-qwen3-omni", max_tokens=3, ignore_eos=False)
    assert (cut.finish_reason, cut.usage["completion_tokens"]) == ("length", 3)
    assert "".join(cut.pieces) == text_of(cut.request_id, 3)
    assert cut.pcm == spoken(cut.request_id, 10, 1920)


@pytest.mark.parametrize("pipeline", SPEECH)
def test_the_speech_of_a_simulated_pipeline_is_exact(pipeline: str) -> None:
    settings, num_rows, samples_per_row, rate = SPEECH[pipeline]
    server = serve(pipeline, settings)
    body = {"model": pipeline, "input": "word " * 10, "response_format": "pcm"}
    response = httpx.post(f"{server.url}/v1/audio/speech", json={**body, "sample_rate": rate}, timeout=60)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == f"audio/pcm;rate={rate};channels=1"
    assert response.content == spoken(response.headers["x-request-id"], num_rows, samples_per_row)
    unasked = httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=60)
    assert unasked.headers["content-type"] == "audio/pcm;rate=24000;channels=1"
    assert len(unasked.content) // 2 == round(num_rows * samples_per_row * 24_000 / rate)
    assert server.stop() == 0


@pytest.mark.parametrize("per_word", [7.0, 0.0], ids=["with codes", "without any code"])
def test_a_talker_ends_the_sound_with_codes_or_without(per_word: float) -> None:
    settings: dict[str, str | int | float | bool] = {
        "stages.thinker.options.base_ms": 1,
        "stages.talker.options.base_ms": 1,
        "stages.talker.options.per_word": per_word,
        "stages.token2wav.options.base_ms": 1,
    }
    sampling = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    asked = ChatInput((ChatMessage("user", "one two three"),), sampling, audio_out=True)

    async def run() -> None:
        async with Engine("sim-minicpm-o", settings=settings) as engine, await engine.client.submit(asked) as stream:
            messages = [message async for message in stream]
        text = "".join(message.output.text for message in messages if isinstance(message.output, TextDelta))
        pcm = b"".join(message.output.pcm for message in messages if isinstance(message.output, AudioChunk))
        assert text == text_of(stream.request_id, NUM_TOKENS)
        assert pcm == spoken(stream.request_id, int(per_word * NUM_TOKENS), 960)
        assert sorted(m.stage for m in messages if isinstance(m.output, OutputEnd)) == ["thinker", "token2wav"]

    asyncio.run(run())


def test_pictures_are_drawn_together_by_the_diffusion_stage() -> None:
    settings: dict[str, str | int | float | bool] = {
        "stages.ar.options.base_ms": 0,
        "stages.ar.options.per_sequence_ms": 0,
        "stages.ar.options.natural_tokens": 100,
        "stages.dit.options.base_ms": 300,
        "stages.dit.options.per_sequence_ms": 0,
    }

    async def draw(engine: Engine) -> None:
        async with await engine.client.submit(ImageInput("a lighthouse at the sea")) as stream:
            picture, _ = [message.output async for message in stream]
        assert isinstance(picture, ImageOutput) and (picture.height, picture.width) == (1024, 1024)
        lines = np.frombuffer(picture.pixels, np.uint8).reshape(1024, 1024, 3)
        picture_codec(1024).check(request_number(stream.request_id), 0, lines, Check.FULL)

    async def run() -> None:
        async with Engine("sim-mammoth", settings=settings) as engine:
            await asyncio.gather(*(draw(engine) for _ in range(6)))
            async with asyncio.timeout(20):  # counters come once a second
                while not (num_steps := _num_steps(engine, "dit/0")):
                    await asyncio.sleep(0.05)
            assert num_steps <= 4, "pictures that are ready at once are drawn together"

    asyncio.run(run())


def _num_steps(engine: Engine, replica: str) -> float:
    counters = [each for each in engine.client.counters() if each.name == "steps_total"]
    return sum(each.value for each in counters if ("replica", replica) in each.labels)
