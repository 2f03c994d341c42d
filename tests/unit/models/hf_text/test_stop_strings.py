"""Stop strings in text that comes in pieces."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from antiphon.models.hf_text.stop_strings import StopStrings


def shown(stop: tuple[str, ...], pieces: list[str]) -> tuple[list[str], bool]:
    strings = StopStrings(stop)
    texts = [strings.push(piece) for piece in pieces]
    return [*texts, strings.finish()], strings.has_stopped


def test_what_could_become_a_stop_string_is_held_back() -> None:
    assert shown(("STOP",), ["a S", "TO", "N b"]) == (["a ", "", "STON b", ""], False)


def test_nothing_is_shown_from_the_stop_string_on() -> None:
    assert shown(("STOP",), ["a ST", "OP b", "c"]) == (["a ", "", "", ""], True)


def test_the_first_of_several_stop_strings_counts() -> None:
    assert shown(("cd", "b"), ["abcd"]) == (["a", ""], True)


def test_held_text_comes_at_the_end() -> None:
    assert shown(("STOP",), ["a STO"]) == (["a ", "STO"], False)


def test_an_empty_stop_string_stops_nothing() -> None:
    assert shown(("",), ["abc"]) == (["abc", ""], False)


@given(
    text=st.text("abc", max_size=30),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 30), max_size=8),
)
def test_any_pieces_give_the_text_up_to_the_first_stop_string(text: str, stop: list[str], cuts: list[int]) -> None:
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(borders)]
    texts, has_stopped = shown(tuple(stop), pieces)
    # The string that is complete first ends the text, so a longer one that began earlier may lose.
    ends = [text.find(each) + len(each) for each in stop if each in text]
    if not ends:
        assert ("".join(texts), has_stopped) == (text, False)
    else:
        assert has_stopped
        said = "".join(texts)
        assert text.startswith(said) and len(said) < max(ends) and not any(each in said for each in stop)
        assert any(text.startswith(each, len(said)) for each in stop)
