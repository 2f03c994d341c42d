"""A conversation -> token ids and media features, by the checkpoint's own processor.

In: a Conversation. Out: tensors by the processor's names, without a batch axis on input_ids; text of token ids.
Does not know: requests, networks.
"""

from pathlib import Path

import torch
from tokenizers.decoders import DecodeStream
from transformers import AutoProcessor, PreTrainedTokenizerFast

from antiphon.errors import ConfigError, InvalidRequestError
from antiphon.models.qwen3_omni.prompt_inputs import NAMES, Tensors
from antiphon.models.qwen3_omni.prompts import Conversation, Turn

_FILES = ("processor_config.json", "preprocessor_config.json")


class ConversationReader:
    """Owns the processor and its tokenizer."""

    def __init__(self, path: Path) -> None:
        self._processor = AutoProcessor.from_pretrained(path, local_files_only=True)  # type: ignore[no-untyped-call]
        if not isinstance(self._processor.tokenizer, PreTrainedTokenizerFast):
            raise ConfigError([f"{path}: only fast tokenizers (tokenizer.json) are served"])
        self._tokenizer = self._processor.tokenizer.backend_tokenizer

    @classmethod
    def load(cls, path: Path) -> "ConversationReader | None":
        """None if the checkpoint has no processor: then it takes tokenized prompts, and gives tokens."""
        return cls(path) if any((path / name).is_file() for name in _FILES) else None

    def tensors(self, conversation: Conversation) -> Tensors:
        """InvalidRequestError if the processor refuses the input."""
        turns = [{"role": turn.role, "content": _content(turn)} for turn in conversation.turns]
        audio = [turn.audio.array() for turn in conversation.turns if turn.audio is not None]
        images = [image.array() for turn in conversation.turns for image in turn.images]
        text = self._processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        try:
            inputs = self._processor(text=[text], audio=audio or None, images=images or None, return_tensors="pt")
        except (ValueError, TypeError) as error:
            raise InvalidRequestError(f"the checkpoint's processor: {error}", param="messages") from error
        tensors = {name: torch.as_tensor(inputs[name]) for name in NAMES if name in inputs}
        tensors["input_ids"] = tensors["input_ids"][0]
        return tensors

    def piece(self, stream: DecodeStream, token: int) -> str:
        """The text that `token` completes."""
        return stream.step(self._tokenizer, token) or ""


def _content(turn: Turn) -> list[dict[str, str]]:
    """Sound and pictures first, then the text, as the checkpoint was taught."""
    audio = [{"type": "audio"}] if turn.audio is not None else []
    text = [{"type": "text", "text": turn.text}] if turn.text else []
    return [*audio, *({"type": "image"} for _ in turn.images), *text]
