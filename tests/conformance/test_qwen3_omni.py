"""qwen3-omni against the reference: `transformers`' generate on the same random fp32 weights, greedy."""

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from transformers import WhisperFeatureExtractor

from antiphon.errors import AntiphonError, InvalidRequestError, UnsupportedOptionError
from antiphon.messages.params import SamplingParams
from antiphon.models.qwen3_omni.prompts import Conversation, Sound, Tensor, TokenizedPrompt, Turn
from tests.conformance.omni_chain import Chain, Heard
from tests.conformance.tiny_processor import save_processor, text_of
from tests.conformance.tiny_qwen3_omni import (
    HIDDEN,
    IM_END,
    MEL_BINS,
    SPEECH_TOKENS,
    Answer,
    Prompt,
    Reference,
    interleaved_video,
    prompt,
    set_speech_defaults,
)

PROMPTS: dict[str, Prompt] = {
    "text": prompt([7, 8, 9]),
    "audio": prompt([10, 11], audio_frames=150),
    "image": prompt([12, 13, 14], grid=(4, 6)),
    "long text": prompt(list(range(1, 40))),
    "long audio": prompt([15], audio_frames=330),
    "audio and image": prompt([16, 17], audio_frames=40, grid=(4, 2)),
    "video": prompt([18, 19, 20], video_grid=3),
}
MIXED = (*PROMPTS, "text")
SPEAKERS = {"text": "chelsie"}


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

    def text_of(self, arrays: Prompt, *, use_audio_in_video: bool) -> list[int]:
        return self._reference.text(arrays, use_audio_in_video=use_audio_in_video)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    """The networks are tiny: more threads only wait for one another."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    return Expected(0, tmp_path_factory.mktemp("seed-0"))


@pytest.fixture(scope="module", params=[1, 2])
def other_seed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Expected:
    return Expected(request.param, tmp_path_factory.mktemp("seed"))


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


def test_other_weights_equal_the_reference(other_seed: Expected) -> None:
    assert_same(other_seed, ask(Chain(other_seed.path), "text", "audio", "image"))


@pytest.mark.parametrize("is_streamed", [True, False], ids=["streamed", "full payload"])
def test_eight_at_once_of_mixed_lengths_equal_the_reference(expected: Expected, is_streamed: bool) -> None:
    chain = Chain(expected.path, is_streamed=is_streamed)
    assert_same(expected, ask(chain, *MIXED))
    assert all(engine.num_preemptions == 0 for engine in (*chain.thinkers, *chain.talkers))


@pytest.mark.parametrize("is_streamed", [True, False], ids=["streamed", "full payload"])
def test_eight_at_once_equal_the_reference_when_the_kv_cache_makes_them_yield(
    expected: Expected, is_streamed: bool
) -> None:
    chain = Chain(expected.path, is_streamed=is_streamed, num_kv_blocks=7)
    assert_same(expected, ask(chain, *MIXED))
    assert all(engine.num_preemptions > 0 for engine in (*chain.thinkers, *chain.talkers))


def test_a_prompt_prefilled_seven_positions_at_a_time_equals_the_reference(expected: Expected) -> None:
    assert_same(expected, ask(Chain(expected.path, max_num_batched_tokens=7), "image", "audio and image", "long text"))


@pytest.mark.parametrize(("num_thinkers", "num_talkers"), [(1, 2), (2, 1), (2, 2)])
def test_two_replicas_of_a_stage_equal_the_reference(expected: Expected, num_thinkers: int, num_talkers: int) -> None:
    chain = Chain(expected.path, num_thinkers=num_thinkers, num_talkers=num_talkers)
    assert_same(expected, ask(chain, "text", "audio", "image", "video"))


def test_two_rows_a_position_and_sixteen_codes_a_frame_cross_and_nothing_else(expected: Expected) -> None:
    chain = Chain(expected.path)
    heard = ask(chain, "image")["image/0"]
    num_positions = len(PROMPTS["image"]["input_ids"]) + len(heard.token_ids) - 1  # the last token is never an input
    num_user_positions = 3 + 1 + 6 + 1 + 3 + 2  # header, picture between its marks, words, end of turn
    layout_bytes = (num_user_positions + 9) * 5 * 4
    assert chain.num_bytes["thinker->talker"] == num_positions * 2 * HIDDEN * 4 + layout_bytes
    assert chain.num_bytes["talker->code2wav"] == (SPEECH_TOKENS - 1) * 16 * 2
    assert len(heard.codes) == SPEECH_TOKENS - 1


def test_the_talker_speaks_before_the_thinker_has_finished(expected: Expected) -> None:
    chain = Chain(expected.path)
    chain.submit("a", PROMPTS["text"])
    while not chain.heard["a"].frames:
        assert "thinker" not in chain.heard["a"].ended
        chain.step()
    chain.step()
    assert "thinker" not in chain.heard["a"].ended


def test_a_text_answer_needs_no_talker_and_is_the_same(expected: Expected) -> None:
    chain = Chain(expected.path)
    chain.submit("a", PROMPTS["image"], speaks=False)
    assert chain.run()["a"].token_ids == expected.answer("image").token_ids
    assert not chain.num_bytes["thinker->talker"]


def test_speakers_differ_and_an_unknown_one_is_the_clients_error(expected: Expected) -> None:
    chain = Chain(expected.path)
    chain.submit("ethan", PROMPTS["text"], voice="Ethan")
    chain.submit("chelsie", PROMPTS["text"], voice="chelsie")
    chain.submit("nobody", PROMPTS["text"], voice="nobody")
    heard = chain.run()
    assert heard["ethan"].codes.tolist() != heard["chelsie"].codes.tolist()
    error = heard["nobody"].error
    assert isinstance(error, InvalidRequestError) and error.param == "voice"
    assert "chelsie, ethan" in error.message


def test_seeded_sampling_is_the_same_alone_and_among_others(expected: Expected) -> None:
    sampling = SamplingParams(max_tokens=8, temperature=1.0, seed=11)
    alone, crowd = Chain(expected.path), Chain(expected.path)
    alone.submit("a", PROMPTS["audio"], sampling)
    for number, name in enumerate(MIXED):
        crowd.submit(f"other/{number}", PROMPTS[name], SamplingParams(max_tokens=8, seed=number))
    crowd.submit("a", PROMPTS["audio"], sampling)
    want, got = alone.run()["a"], crowd.run()["a"]
    assert got.token_ids == want.token_ids
    assert got.codes.tolist() == want.codes.tolist()
    assert want.codes.tolist() != expected.answer("audio").codes.tolist()


def test_a_talker_that_ends_without_a_frame_is_an_error_named_so(tmp_path: Path) -> None:
    Reference(0, tmp_path)
    set_speech_defaults(tmp_path, talker_max_new_tokens=1)  # the code that ends a sequence makes no frame
    chain = Chain(tmp_path)
    chain.submit("a", PROMPTS["text"])
    heard = chain.run()["a"]
    assert_no_audio(heard)
    assert "talker" in heard.ended


def test_a_thinker_that_says_nothing_is_the_same_error(expected: Expected) -> None:
    chain = Chain(expected.path)
    chain.submit("a", PROMPTS["text"], SamplingParams(max_tokens=1, temperature=0.0))
    heard = chain.run()["a"]
    assert_no_audio(heard)
    assert len(heard.token_ids) == 1 and IM_END not in heard.token_ids


def test_a_spoken_conversation_goes_through_the_checkpoints_processor(tmp_path: Path) -> None:
    reference = Reference(3, tmp_path)
    save_processor(tmp_path)
    sound = np.sin(np.arange(8_000, dtype=np.float32))
    conversation = Conversation((Turn("system", ("w40 w41",)), Turn("user", (Sound(Tensor.of(sound)), "w7 w8"))))
    chain = Chain(tmp_path)
    chain.submit("a", conversation, voice="ethan")
    heard = chain.run()["a"]

    extractor = WhisperFeatureExtractor(feature_size=MEL_BINS)
    features = extractor([sound], sampling_rate=16_000, padding=True, truncation=False, return_tensors="np")
    want = reference.answer(
        prompt([7, 8], audio_frames=50) | {"input_features": features["input_features"].astype(np.float32)}
    )
    assert heard.text == text_of(want.token_ids)
    assert heard.codes.tolist() == want.codes.tolist()
    assert not heard.token_ids


def test_the_talker_hears_no_token_of_a_stop_text(tmp_path: Path) -> None:
    Reference(3, tmp_path)
    save_processor(tmp_path)
    conversation = Conversation((Turn("user", ("w7 w8",)),))

    def answer(max_tokens: int, stop: str = "") -> tuple[str, int]:
        """The text, and the bytes of the rows that the talker has got."""
        chain = Chain(tmp_path)
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, stop=(stop,) if stop else ())
        chain.submit("a", conversation, sampling, voice="ethan")
        heard = chain.run()["a"]
        return heard.text, chain.num_bytes["thinker->talker"]

    whole, _ = answer(8)
    words = whole.split()
    stop = " ".join(words[5:])
    assert whole.count(stop) == 1 and len(words) == 8
    text, num_bytes = answer(8, stop)
    assert text.split() == words[:5]
    assert num_bytes == answer(6)[1], "the prompt's rows and five tokens': a sixth one's is not computed"
    assert answer(8, "never said") == answer(8)


def test_a_stop_text_without_a_tokenizer_is_refused(expected: Expected) -> None:
    chain = Chain(expected.path)
    name = next(iter(PROMPTS))
    chain.submit(name, PROMPTS[name], SamplingParams(max_tokens=2, stop=("w1",)))
    error = chain.run()[name].error
    assert isinstance(error, UnsupportedOptionError) and error.param == "stop"


@pytest.mark.parametrize(("count", "max_num_seqs"), [(33, 4), (200, 32)])
def test_more_requests_than_places_wait_their_turn_and_all_are_answered(
    expected: Expected, count: int, max_num_seqs: int
) -> None:
    chain = Chain(expected.path, max_num_seqs=max_num_seqs)
    heard = ask(chain, *(["text", "audio"] * count)[:count])
    assert len(heard) == count
    assert_same(expected, heard)


def test_a_video_with_its_own_sound_is_answered_as_by_the_reference(expected: Expected) -> None:
    """The reference has no speech for it: its talker is not told that sound and pictures are interleaved."""
    arrays = interleaved_video()
    tensors = {name: Tensor.of(array) for name, array in arrays.items()}
    chain = Chain(expected.path)
    chain.submit("a", TokenizedPrompt(tensors, use_audio_in_video=True), speaks=False)
    chain.submit("b", TokenizedPrompt(tensors), speaks=False)
    heard = chain.run()
    assert heard["a"].token_ids == expected.text_of(arrays, use_audio_in_video=True)
    assert heard["a"].token_ids != heard["b"].token_ids


def assert_no_audio(heard: Heard) -> None:
    assert isinstance(heard.error, AntiphonError) and heard.error.code == "no_audio"
    assert not heard.frames and not heard.pcm
