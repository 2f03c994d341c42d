"""The checkpoint's processor, with parts for pictures and videos that need neither Pillow nor torchvision.

In: a prompt's text, sounds, pictures and videos. Out: what `transformers`' Qwen3OmniMoeProcessor gives for them.
Does not know: requests, networks.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3OmniMoeProcessor

from antiphon.models.qwen3_omni.patches import PatchRules, cut

_NAMES = {"image": ("pixel_values", "image_grid_thw"), "video": ("pixel_values_videos", "video_grid_thw")}


class PatchCutter:
    """One kind's part of the processor, under the names by which the processor uses it: image_* or video_*."""

    def __init__(self, kind: str, rules: PatchRules) -> None:
        self._rules = rules
        self._names = _NAMES[kind]
        self.merge_size = rules.merge_size
        self.temporal_patch_size = rules.temporal_patch_size

    def __call__(self, inputs: list[np.ndarray], *, size: dict[str, int] | None = None, **_: Any) -> dict[str, Any]:
        """inputs: [h, w, 3] or [frames, h, w, 3] each; size: other least and most pixels than the checkpoint's."""
        rules = self._rules
        if size is not None:
            rules = replace(rules, min_pixels=size["shortest_edge"], max_pixels=size["longest_edge"])
        pieces, grids = zip(*(cut(array.reshape(-1, *array.shape[-3:]), rules) for array in inputs), strict=True)
        return dict(zip(self._names, (torch.cat(pieces), torch.tensor(grids)), strict=True))

    def fetch_images(self, images: list[np.ndarray]) -> list[np.ndarray]:
        """They are here already."""
        return images


class OmniProcessor(Qwen3OmniMoeProcessor):
    """`transformers`' processor, but its parts may be our own, and each video has its own frame rate."""

    @classmethod
    def of(cls, path: Path, feature_extractor: Any, tokenizer: Any, chat_template: str) -> "OmniProcessor":
        """The processor of the checkpoint at `path`; ConfigError if its pictures are cut in a way not known."""
        return cls(
            image_processor=PatchCutter("image", PatchRules.read(path, "image")),
            video_processor=PatchCutter("video", PatchRules.read(path, "video")),
            feature_extractor=feature_extractor,
            tokenizer=tokenizer,
            chat_template=chat_template,
        )

    def check_argument_for_proper_class(self, argument_name: str, argument: object) -> object:
        """As usual, except for our own parts."""
        if isinstance(argument, PatchCutter):
            return type(argument)
        return super().check_argument_for_proper_class(argument_name, argument)  # type: ignore[no-untyped-call]

    def _process_videos(  # type: ignore[override]
        self,
        videos: list[np.ndarray],
        audio: object = None,
        processed_audio: dict[str, Any] | None = None,
        video_to_audio_indices: list[int | None] | None = None,
        **kwargs: Any,
    ) -> tuple[dict[str, Any], list[str]]:
        """Features and placeholders of all videos; video_metadata has the frame rate of each."""
        options = kwargs["videos_kwargs"]
        processed = self.video_processor(videos, **options)
        seconds = [self.video_processor.temporal_patch_size / video["fps"] for video in options["video_metadata"]]
        processed["video_second_per_grid"] = seconds
        placeholders = [
            self.replace_video_token(
                processed, number, processed_audio, video_to_audio_indices=video_to_audio_indices, **kwargs
            )
            for number in range(len(videos))
        ]
        return processed, placeholders
