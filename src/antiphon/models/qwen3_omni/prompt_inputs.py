"""A prompt's input to the thinker's transformer: embeddings with the media in their places, and rotary positions.

In: token ids and media features, by the processor's names. Out: ThinkerPrompt.
Does not know: requests, the KV cache. InvalidRequestError if the features do not fit the placeholders.
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import Qwen3OmniMoeThinkerForConditionalGeneration

from antiphon.errors import InvalidRequestError
from antiphon.models.qwen3_omni.layout import Media

Tensors = dict[str, torch.Tensor]
NAMES = frozenset(
    {
        "input_ids",
        "input_features",
        "feature_attention_mask",
        "pixel_values",
        "image_grid_thw",
        "pixel_values_videos",
        "video_grid_thw",
        "video_second_per_grid",
    }
)
_TOGETHER = (
    {"input_features", "feature_attention_mask"},
    {"pixel_values", "image_grid_thw"},
    {"pixel_values_videos", "video_grid_thw", "video_second_per_grid"},
)


@dataclass(frozen=True)
class ThinkerPrompt:
    """embeds [n, hidden_size], positions [3, n] float32, is_visual [n] bool, deepstack [num_visual, hidden_size]."""

    embeds: torch.Tensor
    positions: torch.Tensor
    is_visual: torch.Tensor
    deepstack: tuple[torch.Tensor, ...] = ()


def check(tensors: Tensors, vocab_size: int) -> None:
    """InvalidRequestError if names, or token ids, are not possible."""
    unknown = sorted(tensors.keys() - NAMES)
    incomplete = [sorted(group) for group in _TOGETHER if tensors.keys() & group and not group <= tensors.keys()]
    if unknown or incomplete or "input_ids" not in tensors:
        raise InvalidRequestError(
            f"a tokenized prompt has input_ids and features by the processor's names; unknown: {unknown}, "
            f"to be given together: {incomplete}",
            param="messages",
        )
    ids = tensors["input_ids"]
    if ids.ndim != 1 or not len(ids) or not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise InvalidRequestError(f"input_ids is [n] of ids below {vocab_size}, n at least 1", param="messages")


def media_of(tensors: Tensors) -> Media:
    """The sizes of the prompt's media."""
    mask = tensors.get("feature_attention_mask")
    return Media(
        tensors.get("image_grid_thw"),
        tensors.get("video_grid_thw"),
        tensors.get("video_second_per_grid"),
        None if mask is None else mask.sum(dim=-1),
    )


class PromptEncoder:
    """Owns nothing: it uses the thinker's embedding table and towers."""

    def __init__(self, thinker: Qwen3OmniMoeThinkerForConditionalGeneration) -> None:
        self._thinker: Any = thinker
        self._device = thinker.lm_head.weight.device

    def encode(self, tensors: Tensors, *, use_audio_in_video: bool) -> ThinkerPrompt:
        """Run the towers that the prompt needs, one request at a time."""
        config = self._thinker.config
        ids = tensors["input_ids"]
        embeds = self._thinker.get_input_embeddings()(ids.to(self._device))
        is_visual = (ids == config.image_token_id) | (ids == config.video_token_id)
        if "input_features" in tensors:
            embeds = _place(embeds, ids == config.audio_token_id, self._audio(tensors), "audio")
        deepstack: list[torch.Tensor] = []
        for kind, token in (("image", config.image_token_id), ("video", config.video_token_id)):
            found = self._visual(tensors, kind)
            if found is not None:
                embeds = _place(embeds, ids == token, found[0], kind)
                deepstack = _merge(deepstack, found[1], is_visual, ids == token)
        positions = self._positions(ids, media_of(tensors), use_audio_in_video)
        if not deepstack:
            is_visual = torch.zeros_like(is_visual)
        return ThinkerPrompt(embeds, positions.to(self._device), is_visual.to(self._device), tuple(deepstack))

    def _audio(self, tensors: Tensors) -> torch.Tensor:
        output = self._thinker.get_audio_features(
            tensors["input_features"].to(self._device, self._thinker.dtype),
            feature_attention_mask=tensors["feature_attention_mask"].to(self._device),
        )
        features: torch.Tensor = output.last_hidden_state
        return features

    def _visual(self, tensors: Tensors, kind: str) -> tuple[torch.Tensor, list[torch.Tensor]] | None:
        """Embeddings [num_tokens, hidden_size] and the deepstack features of all pictures or videos; None if none."""
        if f"{kind}_grid_thw" not in tensors:
            return None
        thinker = self._thinker
        get_features = thinker.get_image_features if kind == "image" else thinker.get_video_features
        pixels = tensors["pixel_values" if kind == "image" else "pixel_values_videos"]
        output = get_features(pixels.to(self._device), tensors[f"{kind}_grid_thw"].to(self._device))
        return torch.cat(output.pooler_output), [torch.cat(feature) for feature in output.deepstack_features]

    def _positions(self, ids: torch.Tensor, media: Media, use_audio_in_video: bool) -> torch.Tensor:
        try:
            positions, _ = self._thinker.get_rope_index(
                ids[None],
                media.image_grid_thw,
                media.video_grid_thw,
                torch.ones_like(ids)[None],
                use_audio_in_video,
                media.audio_lengths,
                media.video_second_per_grid,
            )
        except (ValueError, IndexError, RuntimeError) as error:  # placeholders that are not where the media are
            raise InvalidRequestError(f"the prompt's media do not fit its tokens: {error}", param="messages") from error
        of_prompt: torch.Tensor = positions[:, 0].float()
        return of_prompt


def _place(embeds: torch.Tensor, mask: torch.Tensor, features: torch.Tensor, kind: str) -> torch.Tensor:
    """embeds [n, hidden_size] with `features` where `mask` [n] is set."""
    if int(mask.sum()) != len(features):
        raise InvalidRequestError(
            f"the prompt has {int(mask.sum())} {kind} tokens, and its {kind} data make {len(features)}",
            param="messages",
        )
    return embeds.masked_scatter(mask[:, None].to(embeds.device), features.to(embeds))


def _merge(
    merged: list[torch.Tensor], features: list[torch.Tensor], is_visual: torch.Tensor, mask: torch.Tensor
) -> list[torch.Tensor]:
    """Per layer, rows for all visual positions in the prompt's order: `features` at those of `mask`, else as before."""
    places = mask[is_visual].to(features[0].device)
    blank = features[0].new_zeros((len(places), features[0].shape[-1]))
    merged = merged or [blank] * len(features)
    return [old.masked_scatter(places[:, None], new) for old, new in zip(merged, features, strict=True)]
