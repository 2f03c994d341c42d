"""Pictures and videos -> the patches that the vision tower reads, as the checkpoint's picture processor makes them.

In: uint8 RGB arrays, and the checkpoint's JSON files with sizes and colours. Out: pixel rows and grids.
Does not know: prompts, networks. Why own code: `transformers` has this only for Pillow and torchvision, which the rest
does not need, and torchvision's builds have to match torch's. Its scaling is torch's own, so the numbers are the same.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from antiphon.errors import ConfigError, InvalidRequestError

_KINDS: Final = {
    "image": ("preprocessor_config.json",),
    "video": ("video_preprocessor_config.json", "preprocessor_config.json"),
}
"""Kind -> the files that may describe its processor, if processor_config.json does not."""
_KNOWN: Final = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLVideoProcessor")
_CLIP_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD: Final = (0.26862954, 0.26130258, 0.27577711)
_MAX_ASPECT: Final = 200


@dataclass(frozen=True)
class PatchRules:
    """How one kind of input is cut: sizes in pixels, mean and std per colour of values from 0 to 1."""

    patch_size: int
    merge_size: int
    temporal_patch_size: int
    min_pixels: int
    max_pixels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def read(cls, path: Path, kind: str) -> "PatchRules":
        """The rules of the checkpoint at `path` for `kind` (image or video); ConfigError for a processor not known."""
        described = _described(path, kind)
        name = described.get(f"{kind}_processor_type") or "Qwen2VLImageProcessor"
        if name not in _KNOWN:
            raise ConfigError([f"{path}: {kind}s are cut by a {name}, and only {', '.join(_KNOWN)} are known"])
        size = described.get("size") or {}
        return cls(
            patch_size=described.get("patch_size", 14),
            merge_size=described.get("merge_size", 2),
            temporal_patch_size=described.get("temporal_patch_size", 2),
            min_pixels=described.get("min_pixels") or size.get("shortest_edge", 56 * 56),
            max_pixels=described.get("max_pixels") or size.get("longest_edge", 28 * 28 * 1280),
            mean=tuple(described.get("image_mean") or _CLIP_MEAN),
            std=tuple(described.get("image_std") or _CLIP_STD),
        )


def cut(frames: np.ndarray, rules: PatchRules) -> tuple[torch.Tensor, tuple[int, int, int]]:
    """A video, or a picture as a video of one frame: uint8 [frames, height, width, 3].

    Returns its patches, float32 [t * h * w, 3 * temporal_patch_size * patch_size ** 2], and its grid (t, h, w). Patches
    of one merged position stand together. InvalidRequestError for a picture much longer than wide.
    """
    pixels = torch.from_numpy(frames).permute(0, 3, 1, 2)
    height, width = pixels.shape[-2:]
    size = fitted_size(height, width, rules)
    if size != (height, width):
        pixels = torch.nn.functional.interpolate(pixels, size, mode="bicubic", antialias=True)
    missing = -len(pixels) % rules.temporal_patch_size
    pixels = torch.cat((pixels, pixels[-1:].expand(missing, -1, -1, -1)))
    patch, merge, depth = rules.patch_size, rules.merge_size, rules.temporal_patch_size
    grid = (len(pixels) // depth, size[0] // patch, size[1] // patch)
    blocks = pixels.reshape(grid[0], depth, 3, grid[1] // merge, merge, patch, grid[2] // merge, merge, patch)
    # from (t, depth, colour, h, mh, ph, w, mw, pw) to (t, h, w, mh, mw, colour, depth, ph, pw)
    rows = blocks.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(math.prod(grid), 3, -1).float()
    mean, std = (torch.tensor(of_colour)[:, None] * 255 for of_colour in (rules.mean, rules.std))
    return rows.sub_(mean).div_(std).flatten(1), grid


def fitted_size(height: int, width: int, rules: PatchRules) -> tuple[int, int]:
    """The nearest height and width that merged patches fill, within the rules' pixels, of about the same shape."""
    if max(height, width) > _MAX_ASPECT * min(height, width):
        raise InvalidRequestError(
            f"a picture of {width} x {height} is too narrow: one side may be at most {_MAX_ASPECT} times the other",
            param="messages",
        )
    unit = rules.patch_size * rules.merge_size
    rows, columns = round(height / unit), round(width / unit)
    if rows * columns * unit * unit > rules.max_pixels:
        shrink = math.sqrt(height * width / rules.max_pixels)
        rows, columns = (max(1, math.floor(side / shrink / unit)) for side in (height, width))
    elif rows * columns * unit * unit < rules.min_pixels:
        grow = math.sqrt(rules.min_pixels / (height * width))
        rows, columns = (math.ceil(side * grow / unit) for side in (height, width))
    return rows * unit, columns * unit


def _described(path: Path, kind: str) -> dict[str, Any]:
    processor = path / "processor_config.json"
    if processor.is_file():
        nested: dict[str, Any] | None = json.loads(processor.read_text()).get(f"{kind}_processor")
        if nested is not None:
            return nested
    for name in _KINDS[kind]:
        if (path / name).is_file():
            described: dict[str, Any] = json.loads((path / name).read_text())
            return described
    return {}
