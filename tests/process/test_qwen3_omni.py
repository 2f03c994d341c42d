"""qwen3-omni behind HTTP, on a tiny random checkpoint: what a client hears is what the reference says."""

import base64
import io
import json
import wave
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

pytest.importorskip("transformers")

from tests.conformance.tiny_processor import picture_prompt, save_processor, text_of, video_prompt
from tests.conformance.tiny_qwen3_omni import Answer, Reference, prompt
from tests.process.conftest import Server, start_server
from tests.unit.server.media_files import picture, png_header, video

RANDOM = np.random.default_rng(6)
PIXELS = RANDOM.integers(0, 256, (16, 24, 3), np.uint8)
FRAMES = RANDOM.integers(0, 256, (3, 256, 512, 3), np.uint8)  # of the least size, so that nothing is scaled
WORDS = {"w7 w8": [7, 8], "w9": [9], "w10 w11 w12 w13": [10, 11, 12, 13]}


@pytest.fixture(scope="module")
def answers_and_server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path: Path = tmp_path_factory.mktemp("omni")
    reference = Reference(3, path)
    save_processor(path)
    answers = {text: reference.answer(prompt(words)) for text, words in WORDS.items()}
    answers["picture"] = reference.answer(picture_prompt(PIXELS, [9]))
    answers["video"] = reference.answer(video_prompt(FRAMES[[0, 2]], 2.0, [9]))
    models = [f"--set=stages.{stage}.model={path}" for stage in ("thinker", "talker", "code2wav")]
    server = start_server("qwen3-omni", *models, "--set=stages.talker.replicas=2")
    yield answers, server
    assert server.stop() == 0, "the server did not stop cleanly"


def ask(server: Server, text: str, **fields: Any) -> httpx.Response:
    body = {
        "model": "qwen3-omni",
        "messages": [{"role": "system", "content": "w40 w41"}, {"role": "user", "content": text}],
        "modalities": ["text", "audio"],
        "audio": {"voice": "ethan", "format": "wav"},
        "temperature": 0,
        "max_tokens": 8,
    }
    return httpx.post(f"{server.url}/v1/chat/completions", json=body | fields, timeout=60.0)


def assert_same(message: dict[str, Any], want: Answer) -> None:
    assert message["content"] == text_of(want.token_ids)
    with wave.open(io.BytesIO(base64.b64decode(message["audio"]["data"]))) as sound:
        assert sound.getframerate() == 24_000
        samples = np.frombuffer(sound.readframes(sound.getnframes()), np.int16).astype(np.float32) / 32767.0
    assert samples.shape == want.samples.shape
    assert np.abs(samples - want.samples).max() < 1e-4


def test_eight_clients_at_once_hear_what_the_reference_says(
    answers_and_server: tuple[dict[str, Answer], Server],
) -> None:
    answers, server = answers_and_server
    texts = [*WORDS, *WORDS, *WORDS][:8]
    with ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(lambda text: ask(server, text), texts))
    for text, response in zip(texts, responses, strict=True):
        assert response.status_code == 200, response.text
        assert_same(response.json()["choices"][0]["message"], answers[text])


def test_a_stream_has_audio_and_the_same_text(answers_and_server: tuple[dict[str, Answer], Server]) -> None:
    answers, server = answers_and_server
    response = ask(server, "w9", stream=True, audio={"voice": "ethan", "format": "pcm16"})
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    text = "".join(delta.get("content") or "" for delta in deltas)
    pcm = b"".join(base64.b64decode((delta.get("audio") or {}).get("data") or "") for delta in deltas)
    want = answers["w9"]
    assert text == text_of(want.token_ids)
    samples = np.frombuffer(pcm, np.int16).astype(np.float32) / 32767.0
    assert samples.shape == want.samples.shape and np.abs(samples - want.samples).max() < 1e-4


def data_url(kind: str, data: bytes) -> dict[str, str]:
    return {"url": f"data:{kind};base64,{base64.b64encode(data).decode()}"}


def ask_about(server: Server, *media: dict[str, Any]) -> dict[str, Any]:
    """The message that OpenAI's own client gets."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60.0) as client:
        completion = client.chat.completions.create(
            model="qwen3-omni",
            messages=[
                {"role": "system", "content": "w40 w41"},
                {"role": "user", "content": [*media, {"type": "text", "text": "w9"}]},  # type: ignore[list-item]
            ],
            modalities=["text", "audio"],
            audio={"voice": "ethan", "format": "wav"},
            temperature=0,
            max_tokens=8,
        )
    return completion.choices[0].message.model_dump()


def test_a_picture_is_seen_as_the_reference_sees_it(answers_and_server: tuple[dict[str, Answer], Server]) -> None:
    answers, server = answers_and_server
    message = ask_about(server, {"type": "image_url", "image_url": data_url("image/png", picture(PIXELS))})
    assert_same(message, answers["picture"])
    assert message["content"] != text_of(answers["w9"].token_ids)


def test_two_frames_a_second_of_a_video_are_seen_as_the_reference_sees_them(
    answers_and_server: tuple[dict[str, Answer], Server],
) -> None:
    answers, server = answers_and_server
    clip = data_url("video/quicktime", video(FRAMES, 4))
    message = ask_about(server, {"type": "video_url", "video_url": clip})
    assert_same(message, answers["video"])
    assert message["content"] != text_of(answers["w9"].token_ids)


@pytest.mark.parametrize(
    ("url", "status", "code"),
    [
        ({"url": "https://example.com/cat.png"}, 400, "unsupported_url"),
        (data_url("image/png", b"hello"), 400, "invalid_image"),
        (data_url("image/png", png_header(12_000, 12_000)), 413, "request_too_large"),
    ],
    ids=["web address", "no picture", "bomb"],
)
def test_a_picture_that_cannot_be_taken_is_refused(
    answers_and_server: tuple[dict[str, Answer], Server], url: dict[str, str], status: int, code: str
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        ask_about(answers_and_server[1], {"type": "image_url", "image_url": url})
    assert (caught.value.status_code, caught.value.code) == (status, code)


def test_an_unknown_speaker_is_a_400_that_lists_the_speakers(
    answers_and_server: tuple[dict[str, Answer], Server],
) -> None:
    response = ask(answers_and_server[1], "w9", audio={"voice": "nobody", "format": "wav"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "voice" and "chelsie, ethan" in error["message"]


def test_an_answer_without_a_word_to_speak_is_an_error_named_so(
    answers_and_server: tuple[dict[str, Answer], Server],
) -> None:
    response = ask(answers_and_server[1], "w9", max_tokens=1)
    assert response.status_code == 500 and response.json()["error"]["code"] == "no_audio"
