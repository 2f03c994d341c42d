"""What single tokens of a `transformers` tokenizer stand for, in text and in bytes.

In: token ids with their scores. Out: TokenLogprobs. Does not know: networks, requests, what text is held back.
"""

import re
from collections.abc import Callable

from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from antiphon.messages.client import TokenChance, TokenLogprob
from antiphon.stage.engine.sequence_model import TokenScores

_characters: Callable[[], dict[int, str]] = bytes_to_unicode
_BYTE_OF = {character: byte for byte, character in _characters().items()}
"""How byte-level tokenizers (GPT-2's kind) spell bytes."""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
"""How sentencepiece's kind spells them."""
_SPACE = "\u2581"
"""How sentencepiece's kind spells a leading space."""


class TokenTexts:
    """Owns nothing but a reference to the tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer

    def logprob(self, token: int, scores: TokenScores) -> TokenLogprob:
        """The token and the likeliest in its place."""
        best = tuple(self._chance(other, logprob) for other, logprob in scores.best)
        return TokenLogprob(self._chance(token, scores.logprob), best)

    def _chance(self, token: int, logprob: float) -> TokenChance:
        text = str(self._tokenizer.decode([token], clean_up_tokenization_spaces=False))
        spelled = str(self._tokenizer.convert_ids_to_tokens(token) or "")
        if spelled.startswith(_SPACE) and not text.startswith(" "):
            text = f" {text}"
        return TokenChance(text, _bytes_of(spelled, text), logprob)


def _bytes_of(spelled: str, text: str) -> bytes:
    """The token's bytes: those of its text, unless it holds part of a character."""
    if "\ufffd" not in text:
        return text.encode()
    if byte := _BYTE_TOKEN.fullmatch(spelled):
        return bytes([int(byte[1], 16)])
    if all(character in _BYTE_OF for character in spelled):
        return bytes(_BYTE_OF[character] for character in spelled)
    return text.encode()
