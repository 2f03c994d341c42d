"""The autoregressive example of docs/adding_a_model.md, served for real and held against transformers' generate."""

import base64
import importlib.util
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np
import openai
import pytest

pytest.importorskip("transformers")

from tests.process.conftest import Server, start_server

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
FEW_BLOCKS = ("--set", "stages.writer.num_kv_blocks=8", "--set", "stages.writer.max_num_batched_tokens=24")
PROMPTS = ("Hello.", "Why?", "A prompt that is longer than one step of this stage may be.", "x", "One two", "1, 2, 3")
MAX_TOKENS = 40
LARGEST_DIFFERENCE = 1 + 3.3  # of 32767: samples are cut to integers, and hidden rows of another batch differ by 1e-5


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_example", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    server: Server = start_server(f"{EXAMPLES / 'murmur.py'}:PIPELINE", *FEW_BLOCKS)
    yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)
    assert server.stop() == 0, "the server did not stop cleanly"


class Reference:
    """What transformers makes of the same weights, one prompt at a time."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._writer, self._murmur = load("murmur_writer"), load("murmur")
        self._network = self._writer.make_network("sdpa")

    def ids(self, prompt: str) -> list[int]:
        """The new tokens; the last is the end of the line, if it ended there."""
        ids = self._torch.tensor([list(f"{prompt}\n".encode())])
        generated = self._network.generate(
            ids,
            attention_mask=self._torch.ones_like(ids),
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            eos_token_id=self._writer.END,
            pad_token_id=0,
            suppress_tokens=list(self._writer.UNPRINTABLE),
        )
        new: list[int] = generated[0, ids.shape[1] :].tolist()
        return new

    def text(self, prompt: str) -> str:
        return "".join(map(chr, self.ids(prompt))).removesuffix("\n")

    def samples(self, prompt: str) -> np.ndarray:
        """The hum of every character's row: the one that it was sampled from."""
        written = self.text(prompt)
        ids = list(f"{prompt}\n{written}".encode())
        with self._torch.no_grad():
            hidden = self._network.model(input_ids=self._torch.tensor([ids[:-1]])).last_hidden_state[0]
        hummed: np.ndarray = self._murmur.hum(hidden[-len(written) :].numpy())
        return hummed


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


def ask(client: openai.OpenAI, prompt: str) -> tuple[list[str], str | None]:
    """The pieces of a streamed answer, and why it ended."""
    messages = [{"role": "user", "content": prompt}]
    stream = client.chat.completions.create(
        model="murmur", messages=messages, max_tokens=MAX_TOKENS, temperature=0, stream=True
    )
    choices = [chunk.choices[0] for chunk in stream if chunk.choices]
    return [piece for choice in choices if (piece := choice.delta.content)], choices[-1].finish_reason


def test_eight_streams_at_once_are_what_generate_writes(client: openai.OpenAI, reference: Reference) -> None:
    asked = [*PROMPTS, *PROMPTS[:2]]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda prompt: ask(client, prompt), asked))
    assert ["".join(pieces) for pieces, _ in answers] == [reference.text(prompt) for prompt in asked]
    assert max(len(pieces) for pieces, _ in answers) > 5, "nothing was streamed"
    reasons = {reason for _, reason in answers}
    assert [reason for _, reason in answers] == [
        "stop" if reference.ids(prompt)[-1] == ord("\n") else "length" for prompt in asked
    ]
    assert reasons == {"stop", "length"}, "choose prompts that end in both ways"


def test_the_second_stage_hums_the_row_of_every_character(client: openai.OpenAI, reference: Reference) -> None:
    answer = client.chat.completions.create(
        model="murmur",
        messages=[{"role": "user", "content": PROMPTS[0]}],
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "pcm16"},
        max_tokens=MAX_TOKENS,
        temperature=0,
    )
    spoken = answer.choices[0].message.audio
    heard, expected = np.frombuffer(base64.b64decode(spoken.data), "<i2"), reference.samples(PROMPTS[0])
    assert spoken.transcript == reference.text(PROMPTS[0])
    assert len(heard) == len(expected) > 0
    assert np.max(np.abs(heard - 32767 * expected)) < LARGEST_DIFFERENCE


def test_a_prompt_beyond_the_networks_context_is_the_clients_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="511 fit"):
        ask(client, "a" * 600)
