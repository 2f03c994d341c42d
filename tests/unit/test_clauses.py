import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.clauses import HARD_CHARS, ClauseSplitter, parts_of

FRAGMENTS = (
    "hello", "The fox", "Dr.", "J.", "e.g.", "3.14", "10,000", "No.", "https://a.org/x.y?z=1,2", "wait...", "…",
    ".", "!", "?", ",", ";", ":", "—", "**bold.**", "*", "_x_", "#", "`code`", "- ", "1. ", "12", "\n", "\n\n", "\r\n",
    " ", "   ", '"', ")", "é", "中", "😀", "x" * 120, " word" * 30, " " * 310,
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=5), max_size=40).map("".join)


def clauses_of(*pieces: str) -> list[str]:
    splitter = ClauseSplitter()
    return [clause for piece in pieces for clause in splitter.push(piece)] + splitter.finish()


def sound_of(text: str) -> str:
    return "".join(filter(str.isalnum, text))


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.lists(st.integers(0, 400), max_size=20))
def test_clauses_do_not_depend_on_how_the_text_was_cut(text: str, lengths: list[int]) -> None:
    pieces, rest = [], text
    for length in lengths:
        pieces.append(rest[:length])
        rest = rest[length:]
    whole = clauses_of(text)
    assert clauses_of(*pieces, rest) == whole
    assert clauses_of(*text) == whole


@settings(max_examples=200, deadline=None)
@given(TEXTS)
def test_nothing_that_sounds_is_lost_or_moved(text: str) -> None:
    clauses = clauses_of(text)
    assert sound_of("".join(clauses)) == sound_of(text)
    assert all(sound_of(clause) and len(clause) <= HARD_CHARS for clause in clauses)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.from_regex(r"\A[a-zA-Z]{1,9}[.,;:!?]?\Z"), min_size=1, max_size=80))
def test_plain_words_keep_their_punctuation(words: list[str]) -> None:
    assert "".join(clauses_of(" ".join(words))).replace(" ", "") == "".join(words)


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.integers(1, 700))
def test_parts_that_continue_each_other_have_the_clauses_of_the_whole(text: str, max_chars: int) -> None:
    spoken = []
    for number, part in enumerate(parts := parts_of(text, max_chars)):
        splitter = ClauseSplitter(continues=number > 0)
        spoken += splitter.push(part) + splitter.finish()
        assert sound_of(part)
    assert spoken == clauses_of(text)
    assert sound_of("".join(parts)) == sound_of(text)


def test_parts_are_as_long_as_they_may_be() -> None:
    text = "It is so. " * 100
    assert [len(part) for part in parts_of(text, 200)] == [200] * 5
    assert parts_of(text, 5_000) == [text]
    assert parts_of(" ... \n", 5) == []


def test_first_piece_ends_at_a_clause_border_and_later_ones_at_sentences() -> None:
    text = "Well, as you know, the sea is deep, cold and dark. It is also wide, very wide. Yes"
    assert clauses_of(text) == [
        "Well, as you know,",
        "the sea is deep, cold and dark.",
        "It is also wide, very wide.",
        "Yes",
    ]


def test_a_sentence_leaves_as_soon_as_the_next_character_is_there() -> None:
    splitter = ClauseSplitter()
    assert splitter.push("Hello there.") == []
    assert splitter.push(" ") == []
    assert splitter.push("H") == ["Hello there."]
    assert splitter.push("ow are you?") == []
    assert splitter.finish() == ["How are you?"]
    assert splitter.finish() == []


@pytest.mark.parametrize(
    "sentence",
    [
        "Ask Dr. Smith today",
        "It was J. K. Rowling",
        "Pi is 3.14 or so",
        "Some fruit, e.g. Apples or pears",
        "He thought... Then he left",
        "Read https://example.org/a.b?c=d. and.More there",
        "He paid 10,000 at 12:30 today",
        "See No. 5 there",
        '"Really?" he said',
    ],
)
def test_no_split_inside(sentence: str) -> None:
    assert clauses_of(f"Hi. {sentence}. Bye.") == ["Hi.", f"{sentence}.", "Bye."]


def test_paragraphs_list_items_and_headings_end_a_piece() -> None:
    text = "# The *plan*\nDo this\nnow:\n\n- **First** thing\n- `second` thing\n1. Third\n2. Fourth\n\nand so on"
    assert clauses_of(text) == [
        "The plan",
        "Do this now:",
        "First thing",
        "second thing",
        "1. Third",
        "2. Fourth",
        "and so on",
    ]


def test_markdown_is_not_spoken_but_arithmetic_and_names_stay() -> None:
    assert clauses_of("**Bold.** __Also__ 2 * 3 in `snake_case` is _fine_. C# too") == [
        "Bold.",
        "Also 2 * 3 in snake_case is fine.",
        "C# too",
    ]


@pytest.mark.parametrize("text", ["", " \n\n ", "...", "***\n\n---\n\n?!", "😀"])
def test_text_without_sound_gives_no_piece(text: str) -> None:
    assert clauses_of(text) == []


def test_a_long_sentence_is_cut_at_the_first_clause_border_behind_200_characters() -> None:
    head = "Hi. " + "Word " * 45 + "end,"
    assert clauses_of(head + " and more, and more.") == ["Hi.", head[4:], "and more, and more."]


def test_a_sentence_without_borders_is_cut_at_a_space_within_300_characters() -> None:
    first, second = clauses_of("word " * 100)
    assert first == " ".join(["word"] * 60)
    assert second == " ".join(["word"] * 40)


def test_a_word_longer_than_the_hard_bound_is_cut_inside() -> None:
    assert [len(clause) for clause in clauses_of("x" * 700)] == [300, 300, 100]


def test_a_dash_between_words_is_a_border_without_a_space() -> None:
    assert clauses_of("I came home late—everyone slept") == ["I came home late—", "everyone slept"]


def test_a_sentence_over_the_hard_bound_is_cut_at_its_last_clause_border_behind_100_characters() -> None:
    head, tail = "Word " * 25 + "end,", "more " * 50
    assert clauses_of(f"Hi. {head} {tail}") == ["Hi.", head, tail.strip()]
