"""A Qwen3-Omni checkpoint of random numbers, small enough for a test, and the reference's answers on it.

In: a seed. Out: a checkpoint directory, prompts, and what `transformers`' generate makes of them, greedy.
Does not know: antiphon's stages.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

AUDIO, IMAGE, VIDEO, AUDIO_START, AUDIO_END, VISION_START, VISION_END = range(101, 108)
IM_START, IM_END, SYSTEM, USER, ASSISTANT, TTS_PAD, TTS_BOS, TTS_EOS = range(108, 116)
NEWLINE = 6
VOCABULARY, HIDDEN = 160, 32
NUM_CODES = 64
CODEC_EOS = NUM_CODES + 6
MEL_BINS, PATCH_WIDTH = 16, 3 * 2 * 4 * 4
ANSWER_TOKENS, SPEECH_TOKENS, MIN_SPEECH_TOKENS = 8, 12, 4
SPEAKERS = {"ethan": NUM_CODES + 16, "chelsie": NUM_CODES + 17}

_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
_WIDE = {"initializer_range": 0.3}  # so that every input tells in the output
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True, **_WIDE}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rope_parameters": _ROPE}
_TOKENS = {"audio_token_id": AUDIO, "image_token_id": IMAGE, "video_token_id": VIDEO}
_STARTS = {"audio_start_token_id": AUDIO_START, "vision_start_token_id": VISION_START}


def config() -> Qwen3OmniMoeConfig:
    """Every kind of layer that the real one has, once or twice."""
    return Qwen3OmniMoeConfig(
        thinker_config=_thinker(),
        talker_config=_talker(),
        code2wav_config=_code2wav(),
        im_start_token_id=IM_START,
        im_end_token_id=IM_END,
        system_token_id=SYSTEM,
        user_token_id=USER,
        assistant_token_id=ASSISTANT,
        tts_pad_token_id=TTS_PAD,
        tts_bos_token_id=TTS_BOS,
        tts_eos_token_id=TTS_EOS,
        initializer_range=0.3,
    )


def _thinker() -> dict[str, Any]:
    audio = {
        "num_mel_bins": MEL_BINS,
        "encoder_layers": 1,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 16,
        "d_model": 16,
        "n_window": 50,
        "n_window_infer": 100,
        "output_dim": 32,
        "downsample_hidden_size": 8,
        "max_source_positions": 64,
        **_WIDE,
    }
    vision = {
        "depth": 2,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 32,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
        **_WIDE,
    }
    return {
        "text_config": {
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "intermediate_size": 32,
            "num_hidden_layers": 3,
            **_HEADS,
            **_MOE,
        },
        "audio_config": audio,
        "vision_config": vision,
        "user_token_id": USER,
        **_WIDE,
        **_TOKENS,
        **_STARTS,
    }


def _talker() -> dict[str, Any]:
    predictor = {
        "vocab_size": NUM_CODES,
        "hidden_size": 24,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "num_code_groups": 16,
        **_WIDE,
    }
    speech = {
        "vocab_size": NUM_CODES + 1024,
        "hidden_size": 24,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "shared_expert_intermediate_size": 16,
        **_HEADS,
        **_MOE,
    }
    names = ("codec_eos_token_id", "codec_nothink_id", "codec_think_bos_id", "codec_think_eos_id", "codec_pad_id")
    return {
        "text_config": speech,
        "code_predictor_config": predictor,
        "num_code_groups": 16,
        "thinker_hidden_size": HIDDEN,
        "accept_hidden_layer": 2,
        "spatial_merge_size": 2,
        "speaker_id": SPEAKERS,
        **_WIDE,
        **{name: CODEC_EOS + number for number, name in enumerate((*names, "codec_bos_id"))},
        **_TOKENS,
        **_STARTS,
    }


def _code2wav() -> dict[str, Any]:
    return {
        "codebook_size": NUM_CODES,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 16,
        "sliding_window": 8,
        "num_hidden_layers": 2,
        "num_quantizers": 16,
        "upsample_rates": (4, 2),
        "upsampling_ratios": (2, 2),
        "decoder_dim": 16,
        "initializer_range": 0.1,
    }


Prompt = dict[str, np.ndarray]


def prompt(
    words: list[int], *, audio_frames: int = 0, grid: tuple[int, int] | None = None, video_grid: int = 0
) -> Prompt:
    """A system turn, a user turn with the media before the words, and the head of the answer.

    audio_frames: mel frames; grid: a picture's height and width in patches; video_grid: frames of 2 x 4 patches.
    """
    random = np.random.default_rng(len(words) + audio_frames)
    arrays: Prompt = {}
    media: list[int] = []
    if audio_frames:
        arrays["input_features"] = random.standard_normal((1, MEL_BINS, audio_frames), dtype=np.float32)
        arrays["feature_attention_mask"] = np.ones((1, audio_frames), np.int64)
        media += [AUDIO_START, *[AUDIO] * _num_audio_tokens(audio_frames), AUDIO_END]
    if grid is not None:
        height, width = grid
        arrays["pixel_values"] = random.standard_normal((height * width, PATCH_WIDTH), dtype=np.float32)
        arrays["image_grid_thw"] = np.array([[1, height, width]], np.int64)
        media += [VISION_START, *[IMAGE] * (height * width // 4), VISION_END]
    if video_grid:
        arrays["pixel_values_videos"] = random.standard_normal((video_grid * 8, PATCH_WIDTH), dtype=np.float32)
        arrays["video_grid_thw"] = np.array([[video_grid, 2, 4]], np.int64)
        arrays["video_second_per_grid"] = np.array([0.5], np.float32)
        media += [VISION_START, *[VIDEO] * (video_grid * 2), VISION_END]
    ids = [IM_START, SYSTEM, NEWLINE, 40, 41, IM_END, NEWLINE, IM_START, USER, NEWLINE, *media, *words, IM_END, NEWLINE]
    arrays["input_ids"] = np.array([*ids, IM_START, ASSISTANT, NEWLINE], np.int64)
    return arrays


def interleaved_video() -> Prompt:
    """A video of three frames of 2 x 4 patches whose sound is interleaved with them, as the processor lays it out."""
    arrays = prompt([21], audio_frames=90, video_grid=3)
    pieces = [VIDEO, VIDEO, *[AUDIO] * 6, VIDEO, VIDEO, *[AUDIO] * (_num_audio_tokens(90) - 6), VIDEO, VIDEO]
    media = [VISION_START, AUDIO_START, *pieces, AUDIO_END, VISION_END]
    ids = [IM_START, USER, NEWLINE, *media, 21, IM_END, NEWLINE, IM_START, ASSISTANT, NEWLINE]
    return arrays | {"input_ids": np.array(ids, np.int64)}


def _num_audio_tokens(frames: int) -> int:
    full, rest = divmod(frames, 100)
    for _ in range(3):
        rest = (rest - 1) // 2 + 1
    return full * 13 + rest


@dataclass(frozen=True)
class Answer:
    """token_ids: the new ones; codes: [num_frames, 16]; samples: float32."""

    token_ids: list[int]
    codes: np.ndarray
    samples: np.ndarray


def set_speech_defaults(path: Path, **defaults: int) -> None:
    """Write the checkpoint's generation config."""
    lengths = {"talker_max_new_tokens": SPEECH_TOKENS, "talker_min_new_tokens": MIN_SPEECH_TOKENS}
    (path / "generation_config.json").write_text(json.dumps(lengths | defaults))


class Reference:
    """Owns the network of one seed, saved as a checkpoint at `path`."""

    def __init__(self, seed: int, path: Path) -> None:
        torch.manual_seed(seed)
        self.path = path
        self._network = Qwen3OmniMoeForConditionalGeneration(config()).eval()
        for name, weight in self._network.named_parameters():
            if ".experts." in name:  # the reference leaves the talker's as the memory was
                torch.nn.init.normal_(weight, std=0.3)
        self._network.save_pretrained(path, max_shard_size="200KB")
        set_speech_defaults(path)
        self._network.talker.config.audio_config = self._network.config.thinker_config.audio_config
        self._codes: list[torch.Tensor] = []
        self._network.code2wav.chunked_decode = self._decode

    def answer(self, arrays: Prompt, speaker: str = "ethan") -> Answer:
        """What the reference says to one prompt, greedy."""
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        ids = tensors.pop("input_ids")[None]
        sequences, audio = self._network.generate(
            ids,
            speaker=speaker,
            thinker_max_new_tokens=ANSWER_TOKENS,
            thinker_eos_token_id=IM_END,
            thinker_do_sample=False,
            talker_max_new_tokens=SPEECH_TOKENS,
            talker_min_new_tokens=MIN_SPEECH_TOKENS,
            talker_do_sample=False,
            **tensors,
        )
        codes = self._codes.pop()[0].T.numpy()
        return Answer(sequences[0, ids.shape[1] :].tolist(), codes, audio[0, 0].numpy())

    def text(self, arrays: Prompt, *, use_audio_in_video: bool) -> list[int]:
        """The new token ids of an answer that is not spoken."""
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        ids = tensors.pop("input_ids")[None]
        sequences = self._network.thinker.generate(
            ids,
            max_new_tokens=ANSWER_TOKENS,
            eos_token_id=IM_END,
            do_sample=False,
            use_audio_in_video=use_audio_in_video,
            **tensors,
        )
        return sequences[0, ids.shape[1] :].tolist()

    def _decode(self, codes: torch.Tensor, **sizes: int) -> torch.Tensor:
        """Keep the codes on their way to the vocoder: [1, 16, num_frames]."""
        self._codes.append(codes)
        return type(self._network.code2wav).chunked_decode(self._network.code2wav, codes, **sizes)
