"""Pictures as patches. The numbers are those of `transformers` 5.23's own processor with torchvision 0.28."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers.utils import is_torchvision_available

from antiphon.errors import ConfigError, InvalidRequestError
from antiphon.models.qwen3_omni.patches import PatchRules, cut, fitted_size
from tests.conformance.tiny_processor import PICTURES, patches

RULES = PatchRules(16, 2, 2, 3136, 12_845_056, (0.5, 0.4, 0.3), (0.5, 0.6, 0.7))
SMALL = PatchRules(16, 2, 2, 56, 2048, (0.5, 0.4, 0.3), (0.5, 0.6, 0.7))
TINY = PatchRules(4, 2, 2, 64, 4096, (0.5,) * 3, (0.5,) * 3)
y, x, colour = np.meshgrid(np.arange(37), np.arange(61), np.arange(3), indexing="ij")
PICTURE = ((7 * y * y + 5 * x * y + 40 * colour * x) % 256).astype(np.uint8)


@pytest.mark.parametrize(
    ("rules", "grid", "sums", "first", "last"),
    [
        (RULES, (1, 4, 6), (4809.0776195, 13381.8972407), -1.0, 0.1204481795),
        (SMALL, (1, 2, 4), (1599.6041498, 4186.1162576), -1.0, 0.0924369767),
    ],
    ids=["made larger", "made smaller"],
)
def test_a_scaled_picture_gives_the_processors_numbers(
    rules: PatchRules, grid: tuple[int, int, int], sums: tuple[float, float], first: float, last: float
) -> None:
    rows, found = cut(PICTURE[None], rules)
    assert found == grid and rows.shape == (grid[1] * grid[2], 1536)
    assert rows.double().sum().item() == pytest.approx(sums[0], abs=1e-4)
    assert rows.double().abs().sum().item() == pytest.approx(sums[1], abs=1e-4)
    assert (rows[0, 0].item(), rows[-1, -1].item()) == pytest.approx((first, last), abs=1e-6)


@pytest.mark.parametrize("num_frames", [1, 2, 3, 4])
def test_patches_stand_as_the_vision_tower_reads_them(num_frames: int) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (num_frames, 16, 24, 3), np.uint8)
    rows, grid = cut(frames, TINY)
    want, want_grid = patches(frames)
    assert grid == want_grid
    np.testing.assert_allclose(rows.numpy(), want, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "want"),
    [
        ((64, 64), (64, 64)),
        ((37, 61), (64, 96)),  # 32 x 64 would have too few pixels
        ((500, 333), (512, 320)),
        ((20, 20), (64, 64)),
        ((1000, 40), (992, 32)),
        ((1, 200), (32, 800)),
        ((4000, 3300), (3936, 3232)),  # too many pixels
    ],
)
def test_a_picture_keeps_its_shape_as_merged_patches_allow(size: tuple[int, int], want: tuple[int, int]) -> None:
    assert fitted_size(*size, RULES) == want


def test_a_picture_that_is_a_line_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="201 x 1 is too narrow"):
        cut(np.zeros((1, 1, 201, 3), np.uint8), RULES)


@pytest.mark.skipif(not is_torchvision_available(), reason="torchvision, which the reference needs, is not installed")
@pytest.mark.parametrize("size", [(64, 64), (37, 61), (500, 333), (20, 20), (1000, 40)])
def test_every_number_is_that_of_the_reference(size: tuple[int, int]) -> None:
    from transformers import Qwen2VLImageProcessor

    processor = Qwen2VLImageProcessor(
        patch_size=16, min_pixels=3136, max_pixels=12_845_056, image_mean=[0.5, 0.4, 0.3], image_std=[0.5, 0.6, 0.7]
    )
    picture = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    assert torch.equal(cut(picture[None], RULES)[0], processor([picture], return_tensors="pt")["pixel_values"])


def test_the_rules_come_from_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PICTURES))
    assert PatchRules.read(tmp_path, "image") == PatchRules.read(tmp_path, "video") == TINY
    (tmp_path / "video_preprocessor_config.json").write_text(
        json.dumps(PICTURES | {"min_pixels": None, "size": {"shortest_edge": 128, "longest_edge": 4096}})
    )
    assert PatchRules.read(tmp_path, "image").min_pixels == 64 and PatchRules.read(tmp_path, "video").min_pixels == 128
    nested = {"image_processor": PICTURES | {"patch_size": 8}, "video_processor": PICTURES | {"patch_size": 2}}
    (tmp_path / "processor_config.json").write_text(json.dumps(nested))
    assert (PatchRules.read(tmp_path, "image").patch_size, PatchRules.read(tmp_path, "video").patch_size) == (8, 2)


def test_a_picture_processor_of_another_kind_is_a_configuration_error(tmp_path: Path) -> None:
    described = PICTURES | {"image_processor_type": "SiglipImageProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(described))
    with pytest.raises(ConfigError, match="SiglipImageProcessor"):
        PatchRules.read(tmp_path, "image")
