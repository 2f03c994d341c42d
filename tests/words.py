"""Word errors between two texts, for tests that listen to what was spoken."""

import re


def words(text: str) -> list[str]:
    """Lower-case words without punctuation."""
    return re.findall(r"[a-z0-9']+", text.lower().replace("’", "'"))


def word_errors(expected: str, heard: str) -> int:
    """Substitutions, insertions and deletions (Levenshtein) that turn `heard` into `expected`."""
    want, have = words(expected), words(heard)
    row = list(range(len(have) + 1))
    for i, word in enumerate(want, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(have, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
    return row[-1]
