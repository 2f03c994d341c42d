"""Conversations with pictures and videos: through the checkpoint's processor, each answer is the reference's."""

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from transformers import WhisperFeatureExtractor

from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.models.qwen3_omni.prompts import Conversation, Part, Picture, Sound, Tensor, Turn, Video
from tests.conformance import tiny_qwen3_omni as tiny
from tests.conformance.omni_chain import Chain, Heard
from tests.conformance.tiny_processor import patches, picture_prompt, save_processor, text_of, video_prompt, with_media
from tests.conformance.tiny_qwen3_omni import MEL_BINS, Reference

RANDOM = np.random.default_rng(5)
PIXELS = RANDOM.integers(0, 256, (16, 24, 3), np.uint8)
FRAMES = RANDOM.integers(0, 256, (4, 256, 512, 3), np.uint8)  # the least size that is not scaled
SOUND = np.sin(np.arange(24_000, dtype=np.float32))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    torch.set_num_threads(1)
    path: Path = tmp_path_factory.mktemp("omni")
    made = Reference(4, path)
    save_processor(path)
    return made


def answer(reference: Reference, *parts: Part, speaks: bool = True) -> Heard:
    turns = (Turn("system", ("w40 w41",)), Turn("user", parts))
    chain = Chain(reference.path, num_kv_blocks=512)
    chain.submit("a", Conversation(turns), voice="ethan", speaks=speaks)
    return chain.run()["a"]


def features_of(sound: np.ndarray) -> dict[str, np.ndarray]:
    extractor = WhisperFeatureExtractor(feature_size=MEL_BINS)
    given = {"sampling_rate": 16_000, "padding": True, "truncation": False, "return_attention_mask": True}
    made = extractor([sound], **given, return_tensors="np")
    return {
        "input_features": made["input_features"].astype(np.float32),
        "feature_attention_mask": made["attention_mask"].astype(np.int64),
    }


def test_a_picture_is_seen_and_spoken_about_as_the_reference_does(reference: Reference) -> None:
    want = reference.answer(picture_prompt(PIXELS, [7, 8]))
    heard = answer(reference, Picture(Tensor.of(PIXELS)), "w7 w8")
    assert heard.error is None and heard.text == text_of(want.token_ids)
    assert heard.codes.tolist() == want.codes.tolist()
    upside_down = answer(reference, Picture(Tensor.of(PIXELS[::-1])), "w7 w8")
    assert upside_down.text != heard.text


def test_a_video_at_its_own_frame_rate_is_seen_as_the_reference_does(reference: Reference) -> None:
    texts = {}
    for frames_per_s in (0.1, 2.0):
        prompt = video_prompt(FRAMES, frames_per_s, [7])
        want = reference.text(prompt, use_audio_in_video=False)
        heard = answer(reference, Video(Tensor.of(FRAMES), frames_per_s), "w7", speaks=False)
        assert heard.error is None and heard.text == text_of(want)
        texts[frames_per_s] = heard.text
    assert len(set(texts.values())) == 2, "the frame rate makes no difference to this checkpoint: choose another seed"


def test_a_videos_sound_is_heard_between_its_frames_as_the_reference_does(reference: Reference) -> None:
    rows, grid = patches(FRAMES)
    num_tokens = len(rows) // 8
    media = [*[tiny.VIDEO] * num_tokens, *[tiny.AUDIO] * 13, *[tiny.VIDEO] * num_tokens, *[tiny.AUDIO] * 7]
    sounding = with_media(
        [7],
        [tiny.VISION_START, tiny.AUDIO_START, *media, tiny.AUDIO_END, tiny.VISION_END],
        pixel_values_videos=rows,
        video_grid_thw=np.array([grid], np.int64),
        video_second_per_grid=np.array([1.0], np.float32),
        **features_of(SOUND),
    )
    want = reference.text(sounding, use_audio_in_video=True)
    heard = answer(reference, Video(Tensor.of(FRAMES), 2.0, Tensor.of(SOUND)), "w7", speaks=False)
    assert heard.error is None and heard.text == text_of(want)


def test_parts_are_read_in_the_order_given(reference: Reference) -> None:
    first = answer(reference, Picture(Tensor.of(PIXELS)), Sound(Tensor.of(SOUND)), "w7", speaks=False)
    second = answer(reference, "w7", Sound(Tensor.of(SOUND)), Picture(Tensor.of(PIXELS)), speaks=False)
    assert first.error is None and second.error is None and first.text != second.text


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((Picture(Tensor.of(np.zeros((1, 201, 3), np.uint8))),), "too narrow"),
        (("<|image_pad|>",), "image"),
        ((Picture(Tensor.of(PIXELS)), "<|image_pad|>"), "image"),
        (("<|video_pad|>", "w7"), "video"),
    ],
)
def test_what_the_processor_cannot_take_is_the_clients_error(
    reference: Reference, parts: tuple[Part, ...], message: str
) -> None:
    error: AntiphonError | None = answer(reference, *parts, speaks=False).error
    assert isinstance(error, InvalidRequestError) and message in error.message


@pytest.mark.parametrize(("positions_a_step", "largest"), [(2048, 6), (30, 2)])
def test_pictures_that_come_at_once_pass_the_tower_together_as_far_as_a_step_takes_them(
    reference: Reference, monkeypatch: pytest.MonkeyPatch, positions_a_step: int, largest: int
) -> None:
    chain = Chain(reference.path, max_num_batched_tokens=positions_a_step)
    passes: list[int] = []
    network = chain.thinkers[0]._model._network
    look = network.get_image_features

    def counted(pixels: torch.Tensor, grid: torch.Tensor) -> object:
        passes.append(len(grid))
        return look(pixels, grid)

    monkeypatch.setattr(network, "get_image_features", counted)
    prompt = picture_prompt(PIXELS, [7, 8])
    for number in range(6):
        chain.submit(str(number), prompt, speaks=False)
    assert not passes, "a request that waits holds up those that run"
    heard = chain.run()
    assert sum(passes) == 6 and max(passes) == largest
    want = text_of(reference.text(prompt, use_audio_in_video=False))
    assert [of_one.text for of_one in heard.values()] == [want] * 6


@pytest.mark.parametrize("missing", ["pixel_values", "input_features"])
def test_a_prompt_whose_media_do_not_fit_fails_alone(reference: Reference, missing: str) -> None:
    good = picture_prompt(PIXELS, [7, 8])
    if missing == "pixel_values":
        bad = good | {"image_grid_thw": np.array([[1, 2, 2]], np.int64), "pixel_values": good["pixel_values"][:4]}
    else:
        bad = tiny.prompt([9], audio_frames=150)
        bad["input_features"], bad["feature_attention_mask"] = (
            bad[name][..., :40] for name in ("input_features", "feature_attention_mask")
        )
    chain = Chain(reference.path)
    for name, prompt in (("good", good), ("bad", bad), ("spoken", tiny.prompt([9], audio_frames=150))):
        chain.submit(name, prompt, speaks=False)
    heard = chain.run()
    assert isinstance(heard["bad"].error, InvalidRequestError)
    assert heard["good"].text == text_of(reference.text(good, use_audio_in_video=False))
    assert heard["spoken"].error is None and heard["spoken"].text
