"""Stop strings in text that is still being written.

In: pieces of text. Out: what may be shown, and whether a stop string has come. Does not know: tokens.
"""


class StopStrings:
    """Owns the end of the text that could still become a stop string; it is held back until that is clear."""

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = tuple(text for text in stop if text)
        self._held = ""
        self.has_stopped = False

    def push(self, piece: str) -> str:
        """The text that is certain now. From the first stop string on nothing comes any more."""
        if self.has_stopped:
            return ""
        text = self._held + piece
        found = [position for position in map(text.find, self._stop) if position >= 0]
        if found:
            self.has_stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The text that was held back: no stop string can follow."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that `stop` begins with."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
