"""The thinker's rows on their way to the talker: those of tokens that may become a stop text wait.

In: rows as they are computed, the text that tokens add, the text that is shown. Out: the rows that may be spoken.
Does not know: stop strings, tokens, the talker.
"""

from bisect import bisect_right

import numpy as np

from antiphon.stage.request import Arrays


class SpokenRows:
    """Owns the rows of one request that are not handed off, and where the text of each new token ends."""

    def __init__(self, num_prompt: int) -> None:
        self._num_prompt = num_prompt
        self._text_ends: list[int] = []
        self._num_shown = 0
        self._held: Arrays = {}
        self._num_given = 0

    def token(self, num_chars: int, num_shown: int) -> None:
        """A token has come. It adds text of `num_chars`, and `num_shown` more are shown now."""
        self._text_ends.append((self._text_ends[-1] if self._text_ends else 0) + num_chars)
        self._num_shown += num_shown

    def take(self, rows: Arrays) -> Arrays:
        """rows: name -> [n, ...], of the positions that follow. Name -> those up to the last one that is shown."""
        held = {name: np.concatenate((self._held[name], array)) for name, array in rows.items()} if self._held else rows
        num_held = len(next(iter(held.values())))
        num_certain = self._num_prompt + bisect_right(self._text_ends, self._num_shown)
        num_ready = min(num_held, num_certain - self._num_given)
        self._num_given += num_ready
        self._held = {name: array[num_ready:].copy() for name, array in held.items()}
        return {name: array[:num_ready] for name, array in held.items()}
