"""A conversation -> token ids and media features, by the checkpoint's own processor.

In: a Conversation. Out: tensors by the processor's names, without a batch axis on input_ids; text of token ids.
Does not know: requests, networks.
"""

from pathlib import Path
from typing import Any

import torch
from tokenizers.decoders import DecodeStream
from transformers import (
    AutoFeatureExtractor,
    AutoProcessor,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen3OmniMoeProcessor,
)
from transformers.utils.import_utils import is_torchvision_available, is_vision_available

from antiphon.errors import ConfigError, InvalidRequestError, UnsupportedModalityError
from antiphon.models.qwen3_omni.prompt_inputs import NAMES, Tensors
from antiphon.models.qwen3_omni.prompts import Conversation, Turn

_FILES = ("processor_config.json", "preprocessor_config.json")


class _BlindProcessor(Qwen3OmniMoeProcessor):
    """The checkpoint's processor where Pillow or torchvision is not installed: it has no part for pictures."""

    def check_argument_for_proper_class(self, argument_name: str, argument: object) -> object:
        """As usual, but a part may be missing."""
        if argument is None:
            return None
        return super().check_argument_for_proper_class(argument_name, argument)  # type: ignore[no-untyped-call]


class ConversationReader:
    """Owns the processor and its tokenizer."""

    def __init__(self, path: Path) -> None:
        self._can_see = is_vision_available() and is_torchvision_available()
        load_all: Any = AutoProcessor.from_pretrained
        self._processor: Any = load_all(path, local_files_only=True) if self._can_see else _blind_processor(path)
        if not isinstance(self._processor.tokenizer, PreTrainedTokenizerFast):
            raise ConfigError([f"{path}: only fast tokenizers (tokenizer.json) are served"])
        self._tokenizer = self._processor.tokenizer.backend_tokenizer

    @classmethod
    def load(cls, path: Path) -> "ConversationReader | None":
        """None if the checkpoint has no processor: then it takes tokenized prompts, and gives tokens."""
        return cls(path) if any((path / name).is_file() for name in _FILES) else None

    def tensors(self, conversation: Conversation) -> Tensors:
        """InvalidRequestError if the processor refuses the input, UnsupportedModalityError if it cannot see."""
        turns = [{"role": turn.role, "content": _content(turn)} for turn in conversation.turns]
        audio = [turn.audio.array() for turn in conversation.turns if turn.audio is not None]
        images = [image.array() for turn in conversation.turns for image in turn.images]
        if images and not self._can_see:
            raise UnsupportedModalityError(
                "this server takes no pictures: Pillow and torchvision are not installed in the thinker's interpreter",
                param="messages",
            )
        text = self._processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        try:
            inputs = self._processor(text=[text], audio=audio or None, images=images or None, return_tensors="pt")
        except (ValueError, TypeError, IndexError) as error:
            raise InvalidRequestError(f"the checkpoint's processor: {error}", param="messages") from error
        tensors = {name: torch.as_tensor(inputs[name]) for name in NAMES if name in inputs}
        tensors["input_ids"] = tensors["input_ids"][0]
        return tensors

    def piece(self, stream: DecodeStream, token: int) -> str:
        """The text that `token` completes."""
        return stream.step(self._tokenizer, token) or ""


def _blind_processor(path: Path) -> Any:
    read: Any = Qwen3OmniMoeProcessor.get_processor_dict
    described, _ = read(path, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    template = described.get("chat_template") or tokenizer.chat_template
    load_feature_extractor: Any = AutoFeatureExtractor.from_pretrained
    return _BlindProcessor(  # type: ignore[no-untyped-call]
        feature_extractor=load_feature_extractor(path, local_files_only=True),
        tokenizer=tokenizer,
        chat_template=template,
    )


def _content(turn: Turn) -> list[dict[str, str]]:
    """Sound and pictures first, then the text, as the checkpoint was taught."""
    audio = [{"type": "audio"}] if turn.audio is not None else []
    text = [{"type": "text", "text": turn.text}] if turn.text else []
    return [*audio, *({"type": "image"} for _ in turn.images), *text]
