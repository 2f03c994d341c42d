"""A conversation -> token ids and media features, by the checkpoint's own processor.

In: a Conversation. Out: tensors by the processor's names, without a batch axis on input_ids; text of token ids.
Does not know: requests, networks.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, assert_never

import numpy as np
import torch
from tokenizers.decoders import DecodeStream
from transformers import AutoFeatureExtractor, AutoTokenizer, PreTrainedTokenizerFast

from antiphon.errors import ConfigError, InvalidRequestError
from antiphon.messages.client import TokenLogprob
from antiphon.models.hf_text.token_texts import TokenTexts
from antiphon.models.qwen3_omni.processor import OmniProcessor
from antiphon.models.qwen3_omni.prompt_inputs import NAMES, Tensors
from antiphon.models.qwen3_omni.prompts import Conversation, Picture, Sound, Turn, Video
from antiphon.stage.engine.sequence_model import TokenScores

_FILES = ("processor_config.json", "preprocessor_config.json")


@dataclass
class _Media:
    """What a conversation's turns have besides text, in their order. sound_sources: of each sound, its video."""

    sounds: list[np.ndarray] = field(default_factory=list)
    sound_sources: list[int | None] = field(default_factory=list)
    pictures: list[np.ndarray] = field(default_factory=list)
    videos: list[np.ndarray] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    @property
    def has_sounding_video(self) -> bool:
        return any(source is not None for source in self.sound_sources)


class ConversationReader:
    """Owns the processor and its tokenizer."""

    def __init__(self, path: Path) -> None:
        self._processor = _load(path)
        if not isinstance(self._processor.tokenizer, PreTrainedTokenizerFast):
            raise ConfigError([f"{path}: only fast tokenizers (tokenizer.json) are served"])
        self._tokenizer = self._processor.tokenizer.backend_tokenizer
        self._token_texts = TokenTexts(self._processor.tokenizer)

    @classmethod
    def load(cls, path: Path) -> "ConversationReader | None":
        """None if the checkpoint has no processor: then it takes tokenized prompts, and gives tokens."""
        return cls(path) if any((path / name).is_file() for name in _FILES) else None

    def tensors(self, conversation: Conversation) -> tuple[Tensors, bool]:
        """The features, and whether the videos' sound is interleaved with them.

        InvalidRequestError if the processor refuses the input.
        """
        media = _Media()
        turns = [{"role": turn.role, "content": _content(turn, media)} for turn in conversation.turns]
        text = self._processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        try:
            inputs = self._processor(
                text=[text],
                audio=media.sounds or None,
                images=media.pictures or None,
                videos=media.videos or None,
                audio_from_video_indices=media.sound_sources,
                load_audio_from_video=media.has_sounding_video,
                videos_kwargs={"video_metadata": [{"fps": rate} for rate in media.rates]},
                return_tensors="pt",
            )
        except (ValueError, TypeError, IndexError) as error:
            raise InvalidRequestError(f"the checkpoint's processor: {error}", param="messages") from error
        tensors = {name: torch.as_tensor(inputs[name]) for name in NAMES if name in inputs}
        tensors["input_ids"] = tensors["input_ids"][0]
        return tensors, media.has_sounding_video

    def piece(self, stream: DecodeStream, token: int) -> str:
        """The text that `token` completes."""
        return stream.step(self._tokenizer, token) or ""

    def logprob(self, token: int, scores: TokenScores) -> TokenLogprob:
        """The token and the likeliest in its place, in words."""
        return self._token_texts.logprob(token, scores)


def _load(path: Path) -> Any:
    read: Any = OmniProcessor.get_processor_dict
    described, _ = read(path, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    load_feature_extractor: Any = AutoFeatureExtractor.from_pretrained
    return OmniProcessor.of(
        path,
        load_feature_extractor(path, local_files_only=True),
        tokenizer,
        described.get("chat_template") or tokenizer.chat_template,
    )


def _content(turn: Turn, media: _Media) -> list[dict[str, str]]:
    """The turn as the chat template reads it; its media are appended to `media`."""
    content = []
    for part in turn.parts:
        match part:
            case str():
                content.append({"type": "text", "text": part})
            case Sound():
                media.sounds.append(part.samples.array())
                media.sound_sources.append(None)
                content.append({"type": "audio"})
            case Picture():
                media.pictures.append(part.pixels.array())
                content.append({"type": "image"})
            case Video():
                if part.sound is not None:
                    media.sounds.append(part.sound.array())
                    media.sound_sources.append(len(media.videos))
                media.videos.append(part.frames.array())
                media.rates.append(part.frames_per_s)
                content.append({"type": "video"})
            case _:
                assert_never(part)
    return content
