"""A prompt's input to the thinker's transformer: embeddings with the media in their places, and rotary positions.

In: token ids and media features, by the processor's names. Out: ThinkerPrompt.
Does not know: requests, the KV cache. InvalidRequestError if the features do not fit the placeholders.
"""

from dataclasses import dataclass, replace
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
_VISUAL = {"image": ("pixel_values", "image_grid_thw"), "video": ("pixel_values_videos", "video_grid_thw")}
_TOGETHER = (
    {"input_features", "feature_attention_mask"},
    {"pixel_values", "image_grid_thw"},
    {"pixel_values_videos", "video_grid_thw", "video_second_per_grid"},
)


@dataclass(frozen=True)
class ThinkerPrompt:
    """positions [3, n] float32, is_visual [n] bool; tensors: what it is made of, until its media have been seen.

    Then embeds [n, hidden_size], and for some layers deepstack [num_visual, hidden_size].
    """

    tensors: Tensors
    positions: torch.Tensor
    is_visual: torch.Tensor
    embeds: torch.Tensor | None = None
    deepstack: tuple[torch.Tensor, ...] = ()


@dataclass(frozen=True)
class _Visuals:
    """embeds [num_tokens, hidden_size], and the same for each deepstack layer."""

    embeds: torch.Tensor
    deepstack: list[torch.Tensor]


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

    def lay_out(self, tensors: Tensors, *, use_audio_in_video: bool) -> ThinkerPrompt:
        """A prompt whose media have not been seen."""
        config = self._thinker.config
        ids = tensors["input_ids"]
        positions = self._positions(ids, media_of(tensors), use_audio_in_video)
        is_visual = torch.zeros(len(ids), dtype=torch.bool)
        if tensors.keys() & {"pixel_values", "pixel_values_videos"}:
            is_visual = (ids == config.image_token_id) | (ids == config.video_token_id)
        return ThinkerPrompt(tensors, positions.to(self._device), is_visual.to(self._device))

    def see(self, prompts: list[ThinkerPrompt]) -> list[ThinkerPrompt]:
        """The prompts with their embeddings: each tower runs once, over the media of all of them."""
        config = self._thinker.config
        tensors = [prompt.tensors for prompt in prompts]
        sounds = self._sounds(tensors)
        images, videos = (self._visuals(tensors, kind) for kind in ("image", "video"))
        seen = []
        for prompt, sound, image, video in zip(prompts, sounds, images, videos, strict=True):
            ids = prompt.tensors["input_ids"].to(self._device)
            embeds = self._thinker.get_input_embeddings()(ids)
            if sound is not None:
                embeds = _place(embeds, ids == config.audio_token_id, sound, "audio")
            deepstack: list[torch.Tensor] = []
            for found, token, kind in (
                (image, config.image_token_id, "image"),
                (video, config.video_token_id, "video"),
            ):
                if found is not None:
                    embeds = _place(embeds, ids == token, found.embeds, kind)
                    deepstack = _merge(deepstack, found.deepstack, prompt.is_visual, ids == token)
            seen.append(replace(prompt, tensors={}, embeds=embeds, deepstack=tuple(deepstack)))
        return seen

    def _sounds(self, prompts: list[Tensors]) -> list[torch.Tensor | None]:
        """Of each prompt, its audio embeddings [num_tokens, hidden_size]; None if it has no sound."""
        heard = [tensors for tensors in prompts if "input_features" in tensors]
        if not heard:
            return [None] * len(prompts)
        longest = max(tensors["input_features"].shape[-1] for tensors in heard)
        features, masks = (
            torch.cat(
                [torch.nn.functional.pad(tensors[name], (0, longest - tensors[name].shape[-1])) for tensors in heard]
            )
            for name in ("input_features", "feature_attention_mask")
        )
        output = self._thinker.get_audio_features(
            features.to(self._device, self._thinker.dtype), feature_attention_mask=masks.to(self._device)
        )
        token = self._thinker.config.audio_token_id
        sizes = [int((tensors["input_ids"] == token).sum()) for tensors in heard]
        if sum(sizes) != len(output.last_hidden_state):
            raise InvalidRequestError(
                f"the prompt has {sum(sizes)} audio tokens, and its audio data make {len(output.last_hidden_state)}",
                param="messages",
            )
        pieces = iter(output.last_hidden_state.split(sizes))
        return [next(pieces) if "input_features" in tensors else None for tensors in prompts]

    def _visuals(self, prompts: list[Tensors], kind: str) -> list["_Visuals | None"]:
        """Of each prompt, what the vision tower makes of its pictures or videos; None if it has none."""
        pixels, grid = _VISUAL[kind]
        seen = [tensors for tensors in prompts if grid in tensors]
        if not seen:
            return [None] * len(prompts)
        thinker = self._thinker
        get_features = thinker.get_image_features if kind == "image" else thinker.get_video_features
        output = get_features(
            torch.cat([tensors[pixels] for tensors in seen]).to(self._device),
            torch.cat([tensors[grid] for tensors in seen]).to(self._device),
        )
        found: list[_Visuals | None] = []
        first = 0
        for tensors in prompts:
            stop = first + (len(tensors[grid]) if grid in tensors else 0)
            layers = [torch.cat(layer[first:stop]) for layer in output.deepstack_features] if stop > first else []
            found.append(_Visuals(torch.cat(output.pooler_output[first:stop]), layers) if stop > first else None)
            first = stop
        return found

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
    return embeds.masked_scatter(mask[:, None], features.to(embeds))


def _merge(
    merged: list[torch.Tensor], features: list[torch.Tensor], is_visual: torch.Tensor, mask: torch.Tensor
) -> list[torch.Tensor]:
    """Per layer, rows for all visual positions in the prompt's order: `features` at those of `mask`, else as before."""
    places = mask[is_visual]
    blank = features[0].new_zeros((len(places), features[0].shape[-1]))
    merged = merged or [blank] * len(features)
    return [old.masked_scatter(places[:, None], new) for old, new in zip(merged, features, strict=True)]
