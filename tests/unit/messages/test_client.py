"""The client lane's messages: what may be joined and what stays as it was said."""

from antiphon.messages.client import (
    AudioChunk,
    ClientOutput,
    OutputEnd,
    TextDelta,
    TokenChance,
    TokenDelta,
    TokenLogprob,
    joined,
)

AUDIO = AudioChunk(b"\0\0", 24_000)


def test_deltas_of_one_kind_in_a_row_are_joined_and_nothing_changes_its_place() -> None:
    said: list[ClientOutput] = [TokenDelta([1]), TokenDelta([2, 3]), AUDIO, AUDIO, TextDelta("Go"), TextDelta("od.")]
    assert joined([*said, TokenDelta([4]), TokenDelta([]), OutputEnd()]) == [
        TokenDelta([1, 2, 3]),
        AUDIO,
        AUDIO,
        TextDelta("Good."),
        TokenDelta([4]),
        OutputEnd(),
    ]


def test_joined_text_keeps_the_log_probabilities_of_all_its_tokens() -> None:
    first, second = (TokenLogprob(TokenChance(text, text.encode(), -1.0)) for text in ("Go", "od."))
    assert joined([TextDelta("Go", (first,)), TextDelta("od.", (second,))]) == [TextDelta("Good.", (first, second))]


def test_what_was_said_is_not_changed() -> None:
    said: list[ClientOutput] = [TokenDelta([1]), TokenDelta([2])]
    assert joined(said) == [TokenDelta([1, 2])]
    assert said == [TokenDelta([1]), TokenDelta([2])]
    assert joined(said[:1]) == said[:1]
