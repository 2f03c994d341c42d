"""The log probabilities of tokens whose text is held back, until it is given out.

In: tokens with the length of the text that each adds, and lengths of text given out. Out: the tokens of that text.
Does not know: tokenizers, stop strings, what a length counts (it is the same for both).
"""

from collections import deque

from antiphon.messages.client import TokenLogprob


class HeldLogprobs:
    """Owns the tokens of one request that no text given out has ended with."""

    def __init__(self) -> None:
        self._tokens: deque[tuple[int, int, TokenLogprob]] = deque()
        """Each with where its text starts and ends, from the beginning of the answer."""
        self._end = 0
        self._num_given = 0

    def push(self, token: TokenLogprob, length: int) -> None:
        """The next token; it adds text of `length`, 0 if it only begins a character."""
        self._tokens.append((self._end, self._end + length, token))
        self._end += length

    def release(self, length: int, *, is_last: bool) -> tuple[TokenLogprob, ...]:
        """More text of `length` is given out. The tokens that end in it, and with the last text those it cuts off."""
        self._num_given += length
        released = []
        while length and self._tokens:
            start, end, token = self._tokens[0]
            if end > self._num_given and not (is_last and start < self._num_given):
                break
            self._tokens.popleft()
            released.append(token)
        return tuple(released)
