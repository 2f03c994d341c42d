"""The word error count that other tests rely on."""

from tests.words import word_errors


def test_counts_substitutions_insertions_and_deletions():
    assert word_errors("The cat sat.", "the cat sat") == 0
    assert word_errors("the cat sat", "the bat sat") == 1
    assert word_errors("the cat sat", "the cat sat down") == 1
    assert word_errors("the cat sat", "cat") == 2
    assert word_errors("", "two words") == 2
