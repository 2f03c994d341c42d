"""Cuts text that is still being written into pieces to speak.

In: text in arbitrary pieces, with the markdown of language models. Out: clauses, as soon as they are whole.
Does not know: phonemes, audio, requests.

Every decision is made from left to right and only on text that no later piece can change, within a window of
300 characters; so the clauses depend on the text alone, never on how it was cut into pieces.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

FIRST_CLAUSE_WORDS = 3  # the first piece may end at a clause border after this many words
SOFT_CHARS = 200  # later pieces may, once they are this long
MIN_FORCED_CHARS = 100  # a piece that reached the hard bound is cut at a clause border behind this, else at a space
HARD_CHARS = 300

_ABBREVIATION = re.compile(  # a name or a number follows
    "Mr|Mrs|Ms|Dr|Prof|St|Mt|Ft|Gen|Gov|Sen|Rep|Capt|Lt|Col|Sgt|Cmdr|Rev|Hon|Pres|Maj|Adm|Fr|vs|cf|approx"
)
_BEFORE_NUMBER = re.compile("No|Fig|Vol|Sec|Ch|p|pp")
_TERMINATORS, _CLAUSE_MARKS, _CLOSERS = ".!?…", ",;:—", "\"'”’)]*_`~"
_MARK = re.compile(f"(?P<marks>[{_TERMINATORS}]+|[{_CLAUSE_MARKS}])[{re.escape(_CLOSERS)}]*|[ \t]*\\r?\\n")
_DOTTED = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")  # e.g, i.e, U.S
_LIST_NUMBER = re.compile(r"\d{1,3}[.)]\s")
_LINE_START = re.compile(r"\A(?:[#>]+\s+|[-+*•]\s+)+")
_EMPHASIS = re.compile(r"`+|\*\*+|__+|~~+|(?<!\w)[*_]+(?=\S)|(?<=\S)[*_]+(?!\w)")


class _Border(Enum):
    NONE = auto()
    CLAUSE = auto()
    SENTENCE = auto()
    UNKNOWN = auto()  # the text that decides has not arrived


@dataclass(frozen=True, slots=True)
class _Cut:
    """A place in the window: the piece before it ends at `end`."""

    border: _Border
    end: int


class ClauseSplitter:
    """Owns the text of one request that has arrived and was not given out yet (at most 300 characters).

    continues: the text goes on from one whose clauses were given out, so none of them is wanted early.
    """

    def __init__(self, *, continues: bool = False) -> None:
        self._text = ""
        self._is_first = not continues

    def push(self, piece: str) -> list[str]:
        """Take more text, return the clauses that it completed, cleaned for speech."""
        self._text = (self._text + piece).lstrip()
        clauses: list[str] = []
        while (end := _piece_end(self._text[: HARD_CHARS + 1], is_first=self._is_first)) is not None:
            self._give_out(end, clauses)
        return clauses

    def finish(self) -> list[str]:
        """The text has ended: what is left, which is one clause or none."""
        clauses: list[str] = []
        self._give_out(len(self._text), clauses)
        return clauses

    def _give_out(self, end: int, clauses: list[str]) -> None:
        clause = speakable(self._text[:end])
        self._text = self._text[end:].lstrip()
        if clause:
            clauses.append(clause)
            self._is_first = False


def parts_of(text: str, max_chars: int) -> list[str]:
    """A whole text in parts of at most `max_chars` characters, or of one clause if that is longer.

    One splitter for each, of which all but the first continue, gives the clauses of one splitter for the whole. What
    has no sound is left out where a part would have nothing else.
    """
    parts: list[str] = []
    begin, has_sound = 0, False
    for start, end in _clauses_in(text):
        if has_sound and end - begin > max_chars:
            parts.append(text[begin:start])
            begin, has_sound = start, False
        has_sound = has_sound or bool(speakable(text[start:end]))
    if has_sound:
        parts.append(text[begin:])
    return parts


def _clauses_in(text: str) -> Iterator[tuple[int, int]]:
    """Where the clauses of a whole text start and end, those without sound among them."""
    start, is_first = _next_visible(text, 0), True
    while (end := _piece_end(text[start : start + HARD_CHARS + 1], is_first=is_first)) is not None:
        yield start, start + end
        is_first = is_first and not speakable(text[start : start + end])
        start = _next_visible(text, start + end)
    yield start, len(text)


def _next_visible(text: str, start: int) -> int:
    while start < len(text) and text[start].isspace():
        start += 1
    return start


def speakable(text: str) -> str:
    """Text without markdown and with single spaces; empty if it has no letter or digit, thus no sound."""
    if not any(character.isalnum() for character in text):
        return ""
    return " ".join(_EMPHASIS.sub("", _LINE_START.sub("", text)).split())


def _piece_end(window: str, *, is_first: bool) -> int | None:
    """Where the first piece of the window ends, None while that depends on text to come."""
    is_full = len(window) > HARD_CHARS
    last_clause_end = 0
    for cut in _cuts(window):
        if cut.border is _Border.SENTENCE:
            return cut.end
        if cut.border is _Border.UNKNOWN and not is_full:
            return None
        if cut.border is _Border.CLAUSE:
            if cut.end >= SOFT_CHARS or (is_first and _num_words(window[: cut.end]) >= FIRST_CLAUSE_WORDS):
                return cut.end
            last_clause_end = cut.end
    if not is_full:
        return None
    if last_clause_end >= MIN_FORCED_CHARS:
        return last_clause_end
    last_space = max(window.rfind(space) for space in " \t\n")
    return last_space if last_space > 0 else HARD_CHARS


def _num_words(text: str) -> int:
    return sum(any(character.isalnum() for character in word) for word in text.split())


def _cuts(window: str) -> Iterator[_Cut]:
    """Every possible border of the window, from left to right."""
    for mark in _MARK.finditer(window):
        end = mark.end()
        marks = mark["marks"]
        if marks is None:
            yield _Cut(_line_border(window, mark.start(), end), mark.start())
            continue
        following = window[end:].lstrip()
        if not following:
            yield _Cut(_Border.UNKNOWN, end)
        elif not window[end].isspace() and marks != "—":
            continue  # 3.14, 10,000, example.org
        elif marks in _CLAUSE_MARKS:
            yield _Cut(_Border.CLAUSE, end)
        else:
            yield _Cut(_terminator_border(window[: mark.start()], marks, following[0]), end)


def _terminator_border(before: str, marks: str, following: str) -> _Border:
    """What `marks` (one or more of .!?…) mean between `before` and the next character that is no space."""
    if marks == "…" or marks.startswith(".."):
        return _Border.NONE if following.islower() else _Border.CLAUSE
    if following.islower() or following in _TERMINATORS:
        return _Border.NONE
    if marks != ".":
        return _Border.SENTENCE
    words = before.split()
    word = words[-1].lstrip("(\"“'‘*_[") if words else ""
    is_initial = len(word) == 1 and word.isupper() and word != "I"
    is_list_number = len(words) == 1 and word.isdecimal() and len(word) <= 3
    is_numbering = following.isdecimal() and _BEFORE_NUMBER.fullmatch(word)
    if is_initial or is_list_number or is_numbering or _ABBREVIATION.fullmatch(word) or _DOTTED.fullmatch(word):
        return _Border.NONE
    return _Border.SENTENCE


def _line_border(window: str, line_end: int, next_line: int) -> _Border:
    """A line's end ends the piece before a blank line, list item, heading or quote, and after a heading."""
    if window[window.rfind("\n", 0, line_end) + 1 : line_end].startswith("#"):
        return _Border.SENTENCE
    rest = window[next_line:].lstrip(" \t\r")
    if not rest:
        return _Border.UNKNOWN
    if rest[0] in "\n#>|`":
        return _Border.SENTENCE
    if rest[0] in "-+*•":
        if len(rest) == 1:
            return _Border.UNKNOWN
        return _Border.SENTENCE if rest[1].isspace() or rest[1] == rest[0] else _Border.NONE
    digits = len(rest) - len(rest.lstrip("0123456789"))
    if 0 < digits <= 3 and len(rest) < digits + 2:
        return _Border.UNKNOWN
    return _Border.SENTENCE if _LIST_NUMBER.match(rest) else _Border.NONE
