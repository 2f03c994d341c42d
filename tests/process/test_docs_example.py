"""The documentation's examples, run for real: the pipeline of docs/adding_a_model.md and the README's commands."""

import asyncio
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import httpx
import numpy as np
import pytest

from antiphon import Engine
from antiphon.messages.client import AudioChunk, OutputEnd
from tests.process.conftest import Server, start_server

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PLAYERS = """
set -eo pipefail
shopt -s lastpipe
played=0
aplay() { played=$((played + 1)); if [ -f "$1" ]; then cat "$1"; else cat; fi > "played.$played"; }
mpv() { played=$((played + 1)); cat > "played.$played"; }
"""
"""Stand-ins for players, which write down what they would play; lastpipe keeps their count in this shell."""
NUM_PLAYED = 5
EXAMPLE = ROOT / "docs/examples/tones.py"
REFERENCE = f"{EXAMPLE}:PIPELINE"
TEXT = "Größe 42, and many more characters than one chunk holds: ääää."
LARGEST_ROUNDING = 1.01  # of 32767: samples are cut to integers


@pytest.fixture(scope="module")
def tones() -> ModuleType:
    """The example as a module of this process."""
    spec = importlib.util.spec_from_file_location("tones_example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tones_server() -> Iterator[Server]:
    server = start_server(REFERENCE)
    yield server
    assert server.stop() == 0, "the server did not stop cleanly"


def expected_samples(tones: ModuleType, text: str, speed: float = 1.0) -> np.ndarray:
    """The tones' samples, each computed from its start: no chunk, no stage, no state."""
    per_tone = round(0.1 * 24_000 / speed)
    frequencies = np.array([220 * 2 ** (ord(char.lower()) % 24 / 12) for char in text], np.float32).astype(np.float64)
    phases = 2 * np.pi * np.cumsum(np.repeat(frequencies, per_tone)) / 24_000
    return 0.3 * np.repeat([char.isalnum() for char in text], per_tone) * np.sin(phases)


def assert_heard(pcm: bytes, expected: np.ndarray) -> None:
    heard = np.frombuffer(pcm, "<i2")
    assert len(heard) == len(expected)
    assert np.max(np.abs(heard - 32767 * expected)) < LARGEST_ROUNDING


def speak(server: Server, **wishes: object) -> httpx.Response:
    body = {"model": "tones", "input": TEXT, "response_format": "pcm", **wishes}
    return httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=30)


def test_the_served_audio_is_what_the_model_computes(tones, tones_server):
    answer = speak(tones_server)
    assert answer.status_code == 200, answer.text
    assert_heard(answer.content, expected_samples(tones, TEXT))


def test_the_speed_of_the_request_reaches_the_composer(tones, tones_server):
    assert_heard(speak(tones_server, speed=2.0).content, expected_samples(tones, TEXT, speed=2.0))


def test_the_pipelines_name_and_openais_are_served_as_models(tones_server):
    names = {model["id"] for model in httpx.get(f"{tones_server.url}/v1/models").json()["data"]}
    assert {"tones", "tts-1"} <= names and "whisper-1" not in names
    assert speak(tones_server, model="voice").status_code == 404


def test_a_blank_input_and_a_task_that_is_not_there_are_refused(tones_server):
    assert speak(tones_server, input="  ").json()["error"]["param"] == "input"
    chat = {"model": "tones", "messages": [{"role": "user", "content": "Hello."}]}
    answer = httpx.post(f"{tones_server.url}/v1/chat/completions", json=chat)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_modality")


def test_the_library_streams_the_same_audio_and_counts_it(tones):
    async def run() -> tuple[list[AudioChunk], OutputEnd]:
        async with Engine(REFERENCE) as engine:
            outputs = [message.output async for message in engine.generate("speech", TEXT)]
        *chunks, end = outputs
        assert isinstance(end, OutputEnd)
        return [chunk for chunk in chunks if isinstance(chunk, AudioChunk)], end

    chunks, end = asyncio.run(run())
    expected = expected_samples(tones, TEXT)
    assert len(chunks) > 1
    assert_heard(b"".join(chunk.pcm for chunk in chunks), expected)
    assert (end.usage.num_input_tokens, end.usage.num_samples) == (len(TEXT), len(expected))


def readme_blocks(language: str, containing: str) -> str:
    (block,) = [text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if containing in text]
    return block


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="the README's commands need curl and jq")
def test_the_readmes_commands_make_sound_and_text(voice_server, tmp_path):
    script = PLAYERS + readme_blocks("sh", "curl").replace("http://127.0.0.1:8000", voice_server.url)
    ran = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr
    written, transcript = ran.stdout.split('{"text":')
    assert len(written.strip()) > 1 and "Hello there" in transcript
    sizes = [len((tmp_path / f"played.{number}").read_bytes()) for number in range(1, NUM_PLAYED + 1)]
    assert min(sizes) > 5_000, sizes
    assert (tmp_path / "answer.wav").read_bytes()[:4] == b"RIFF"


def test_the_readmes_openai_example_runs(voice_server, tmp_path):
    program = readme_blocks("python", "from openai").replace("http://127.0.0.1:8000", voice_server.url)
    ran = run_python(program, tmp_path)
    assert ran.startswith("Hello there.") and len(ran) > len("Hello there.\n") + 1


def test_the_readmes_library_example_runs(tmp_path):
    *chunks, end = run_python(readme_blocks("python", "import Engine"), tmp_path).splitlines()
    assert set(chunks) == {"code2wav AudioChunk"} and end == "code2wav OutputEnd"


def run_python(program: str, folder: Path) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
