"""qwen3-omni against the reference: `transformers`' generate on the same random fp32 weights, greedy."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")

from antiphon.errors import AntiphonError
from tests.conformance.omni_chain import Chain, Heard
from tests.conformance.tiny_qwen3_omni import Answer, Prompt, Reference, prompt

PROMPTS: dict[str, Prompt] = {
    "text": prompt([7, 8, 9]),
    "audio": prompt([10, 11], audio_frames=150),
    "image": prompt([12, 13, 14], grid=(4, 6)),
    "long text": prompt(list(range(1, 40))),
    "long audio": prompt([15], audio_frames=330),
    "audio and image": prompt([16, 17], audio_frames=40, grid=(4, 2)),
    "video": prompt([18, 19, 20], video_grid=3),
}
BASIC = ("text", "audio", "image")
SPEAKERS = {"text": "chelsie"}
HIDDEN_BYTES = 32 * 4


class Expected:
    """The reference of one seed and its answers, each made once."""

    def __init__(self, seed: int, path: Path) -> None:
        self.path = path
        self._reference = Reference(seed, path)
        self._answers: dict[str, Answer] = {}

    def answer(self, name: str) -> Answer:
        if name not in self._answers:
            self._answers[name] = self._reference.answer(PROMPTS[name], SPEAKERS.get(name, "ethan"))
        return self._answers[name]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    return Expected(0, tmp_path_factory.mktemp("seed-0"))


def ask(chain: Chain, *names: str) -> dict[str, Heard]:
    for number, name in enumerate(names):
        chain.submit(f"{name}/{number}", PROMPTS[name], voice=SPEAKERS.get(name, "ethan"))
    return chain.run()


def assert_same(expected: Expected, heard: dict[str, Heard]) -> None:
    for request, got in heard.items():
        want = expected.answer(request.partition("/")[0])
        assert got.error is None, request
        assert got.token_ids == want.token_ids, request
        assert got.codes.tolist() == want.codes.tolist(), request
        assert got.samples.shape == want.samples.shape, request
        assert np.abs(got.samples - want.samples).max() < 1e-4, request


@pytest.mark.parametrize("is_streamed", [True, False], ids=["streamed", "full payload"])
@pytest.mark.parametrize("name", PROMPTS)
def test_one_request_equals_the_reference(expected: Expected, name: str, is_streamed: bool) -> None:
    assert_same(expected, ask(Chain(expected.path, is_streamed=is_streamed), name))
