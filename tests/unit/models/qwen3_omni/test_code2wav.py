"""code2wav on the generation engine: slots are decoded together, and a fault is its own slot's."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon.connector.base import Chunk
from antiphon.errors import AntiphonError, StageError
from antiphon.messages.interstage import ChunkForm, ChunkHeader, TensorSpec
from antiphon.messages.params import RequestParams
from antiphon.models.qwen3_omni.code2wav import Code2Wav
from antiphon.stage.engine.generation import GenerationEngine
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.request import EdgeInput, StageRequest
from antiphon.stage.scheduler.generation import GenerationScheduler
from tests.conformance.tiny_qwen3_omni import NUM_CODES

EDGE = "talker->code2wav"


@pytest.fixture(scope="module")
def model(checkpoint_path: Path) -> Code2Wav:
    model = Code2Wav()
    model.load(ModelContext("cpu", 1, str(checkpoint_path), ""))
    return model


class Served:
    """An engine, and what each request has heard or failed with."""

    def __init__(self, model: Code2Wav) -> None:
        self.engine = GenerationEngine(model, _no_load(), GenerationScheduler(max_num_seqs=8, max_batch_size=8))
        self.requests: dict[str, StageRequest] = {}
        self.pcm: dict[str, bytes] = {}
        self.errors: dict[str, AntiphonError] = {}

    def push(self, name: str, codes: np.ndarray, *, ends: bool = False) -> None:
        if name not in self.requests:
            edge = EdgeInput()
            request = StageRequest(name, 0, "chat", RequestParams(), {"talker": edge}, frozenset(), True)
            self.requests[name], self.pcm[name] = request, b""
            self.engine.add(request)
        edge = self.requests[name].input
        if len(codes):
            spec = TensorSpec("codes", "int16", codes.shape[1:], True)
            first = edge.num_rows + edge.num_rows_taken
            form = ChunkForm(name, 0, EDGE, "talker/0", (spec,))
            edge.add(Chunk(ChunkHeader(form, 0, first, len(codes)), {"codes": codes}))
        edge.ended = ends

    def step(self) -> None:
        for result in self.engine.step():
            if isinstance(result.output, AntiphonError):
                self.errors[result.request.request_id] = result.output
            else:
                self.pcm[result.request.request_id] += b"".join(chunk.pcm for chunk in result.output.client)


def _no_load() -> ModelContext:
    return ModelContext("cpu", 1, "", "")


def codes(seed: int, count: int = 25) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, NUM_CODES, (count, 16), np.int16)


def alone(model: Code2Wav, *pieces: np.ndarray) -> bytes:
    served = Served(model)
    for piece in pieces:
        served.push("a", piece)
        served.step()
    return served.pcm["a"]


def assert_heard(pcm: bytes, want: bytes) -> None:
    got, expected = np.frombuffer(pcm, "<i2"), np.frombuffer(want, "<i2")
    assert len(got) == len(expected) > 0
    assert np.abs(got.astype(int) - expected).max() <= 1  # 1e-5 of 32767 may round the other way


def test_a_slot_with_bad_codes_or_none_fails_alone_and_without_a_second_try(model: Code2Wav) -> None:
    served = Served(model)
    served.push("a", codes(1))
    served.push("bad", np.full((3, 16), NUM_CODES, np.int16))
    served.push("b", codes(2))
    served.push("silent", codes(3, 0), ends=True)
    batches: list[int] = []
    hook = model._network.decoder[0].register_forward_hook(lambda _, inputs, __: batches.append(len(inputs[0])))
    served.step()
    hook.remove()
    assert batches == [2]
    assert_heard(served.pcm["a"], alone(model, codes(1)))
    assert_heard(served.pcm["b"], alone(model, codes(2)))
    assert served.errors["silent"].code == "no_audio"
    assert "from 64 to 64" in served.errors["bad"].message and isinstance(served.errors["bad"], StageError)


def test_a_slot_that_cannot_be_decoded_changes_nothing_of_the_others(model: Code2Wav) -> None:
    served = Served(model)
    for number, name in enumerate(("a", "broken", "b")):
        served.push(name, codes(number))
    served.step()
    broken = served.engine._jobs["broken"].state
    broken.window = replace(broken.window, hidden=torch.zeros(3, 5))  # no network has made this
    for number, name in enumerate(("a", "broken", "b")):
        served.push(name, codes(10 + number))
    served.step()
    assert set(served.errors) == {"broken"}
    assert_heard(served.pcm["a"], alone(model, codes(0), codes(10)))
    assert_heard(served.pcm["b"], alone(model, codes(2), codes(12)))
