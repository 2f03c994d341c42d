import pytest

from antiphon.bench.workloads import SPOKEN, Prompts, Spoken, long_texts
from antiphon.clauses import ClauseSplitter


@pytest.mark.parametrize("spoken", SPOKEN)
def test_the_first_clause_is_the_one_that_the_talker_speaks_first(spoken: Spoken) -> None:
    splitter = ClauseSplitter()
    assert (splitter.push(spoken.text) + splitter.finish())[0] == spoken.first_clause


def test_long_texts_all_differ() -> None:
    assert len(set(long_texts(16))) == 16


def test_no_prompt_comes_twice_and_they_differ_from_their_first_word_on() -> None:
    prompts = Prompts()
    taken = (*prompts.take(20), *prompts.take(30))
    assert len({prompt.split()[0] for prompt in taken}) == 50
