"""A processor for the tiny checkpoint: a vocabulary of words w0, w1, ..., the marks, and 16 mel bins.

In: the checkpoint directory. Out: the files that a published checkpoint has.
Does not know: antiphon.
"""

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, WhisperFeatureExtractor

from tests.conformance import tiny_qwen3_omni as tiny

_MARKS = {
    "<|audio_pad|>": tiny.AUDIO,
    "<|image_pad|>": tiny.IMAGE,
    "<|video_pad|>": tiny.VIDEO,
    "<|audio_start|>": tiny.AUDIO_START,
    "<|audio_end|>": tiny.AUDIO_END,
    "<|vision_start|>": tiny.VISION_START,
    "<|vision_end|>": tiny.VISION_END,
    "<|im_start|>": tiny.IM_START,
    "<|im_end|>": tiny.IM_END,
}
_NAMES = {
    "audio_token": "<|audio_pad|>",
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
}
_ROLES = {"system": tiny.SYSTEM, "user": tiny.USER, "assistant": tiny.ASSISTANT, "\n": tiny.NEWLINE}
_TEMPLATE = """{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\n' -}}
{%- for part in message.content -%}
{%- if part.type == 'audio' -%}{{- '<|audio_start|><|audio_pad|><|audio_end|>' -}}
{%- elif part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- elif part.type == 'video' -%}{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
{%- else -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"""


PICTURES = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 64,
    "max_pixels": 4096,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def text_of(token_ids: list[int]) -> str:
    """What the tokenizer makes of an answer: its words, without marks."""
    names = {token: name for name, token in _ROLES.items()}
    return " ".join(names.get(token, f"w{token}") for token in token_ids if token not in _MARKS.values())


def save_processor(path: Path) -> None:
    """Write tokenizer, chat template and feature extractor into the checkpoint directory."""
    taken = {**_MARKS, **_ROLES}
    words = {f"w{number}": number for number in range(tiny.VOCABULARY) if number not in taken.values()}
    tokenizer = Tokenizer(models.WordLevel({**words, **taken}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("\n", "isolated"), pre_tokenizers.Split(" ", "removed")]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>", extra_special_tokens=_NAMES
    )
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]}, replace_extra_special_tokens=False)
    fast.save_pretrained(path)
    extractor = WhisperFeatureExtractor(feature_size=tiny.MEL_BINS, return_attention_mask=True)
    described = extractor.to_dict() | PICTURES  # one file for both, as published
    (path / "preprocessor_config.json").write_text(json.dumps(described, default=np.ndarray.tolist))
    (path / "chat_template.json").write_text(json.dumps({"chat_template": _TEMPLATE}))


def patches(frames: np.ndarray) -> tuple[np.ndarray, tuple[int, int, int]]:
    """What the processor makes of frames that need no scaling, patch by patch: uint8 [n, height, width, 3].

    Returns float32 [t * h * w, 96] and the grid (t, h, w). A patch is two frames of 4 x 4 pixels, colour first.
    """
    values = frames.astype(np.float32) / 127.5 - 1.0
    if len(values) % 2:
        values = np.concatenate((values, values[-1:]))
    num_pairs, rows, columns = len(values) // 2, values.shape[1] // 4, values.shape[2] // 4
    cut = []
    for pair in range(num_pairs):
        for top, left in ((2 * y, 2 * x) for y in range(rows // 2) for x in range(columns // 2)):
            for row, column in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
                block = values[2 * pair : 2 * pair + 2, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
                cut.append(block.transpose(3, 0, 1, 2).ravel())
    return np.stack(cut), (num_pairs, rows, columns)


def with_media(words: list[int], media: list[int], **features: np.ndarray) -> tiny.Prompt:
    """A system turn, a user turn of `media` tokens before the words, and the head of the answer."""
    ids = tiny.prompt(words)["input_ids"]
    place = list(ids).index(tiny.USER) + 2
    return {**features, "input_ids": np.concatenate((ids[:place], np.array(media, np.int64), ids[place:]))}


def picture_prompt(pixels: np.ndarray, words: list[int]) -> tiny.Prompt:
    """`pixels` [height, width, 3], both multiples of 8, before the words."""
    rows, grid = patches(pixels[None])
    media = [tiny.VISION_START, *[tiny.IMAGE] * (len(rows) // 4), tiny.VISION_END]
    return with_media(words, media, pixel_values=rows, image_grid_thw=np.array([grid], np.int64))


def video_prompt(frames: np.ndarray, frames_per_s: float, words: list[int]) -> tiny.Prompt:
    """Silent `frames` [n, height, width, 3], large enough for the processor, before the words."""
    rows, grid = patches(frames)
    media = [tiny.VISION_START, *[tiny.VIDEO] * (len(rows) // 4), tiny.VISION_END]
    features = {"pixel_values_videos": rows, "video_grid_thw": np.array([grid], np.int64)}
    return with_media(words, media, **features, video_second_per_grid=np.array([2 / frames_per_s], np.float32))
