import math

import numpy as np
import pytest

from antiphon.bench.serve.arrivals import Load, Shape, due_times_s
from antiphon.bench.serve.dataset import TokenRange, made_up_prompts, prompts_of_file
from antiphon.errors import ConfigError


def gaps(load: Load, count: int) -> np.ndarray:
    return np.diff([0.0, *due_times_s(load, count)])


@pytest.mark.parametrize("shape", Shape)
@pytest.mark.parametrize("rate_rps", [0.2, 24.0])
def test_the_mean_rate_is_exact_whatever_the_shape_and_the_seed(shape: Shape, rate_rps: float) -> None:
    for seed in range(5):
        due_s = due_times_s(Load(rate_rps, shape, seed=seed), 200)
        assert due_s[-1] == pytest.approx(200 / rate_rps)
        assert due_s == sorted(due_s)


def test_the_same_seed_gives_the_same_times_and_another_gives_others() -> None:
    assert due_times_s(Load(4.0, seed=7), 50) == due_times_s(Load(4.0, seed=7), 50)
    assert due_times_s(Load(4.0, seed=7), 50) != due_times_s(Load(4.0, seed=8), 50)


def test_poisson_gaps_spread_as_exponentials_do_and_burstiness_changes_that() -> None:
    spread = {b: gaps(Load(1.0, burstiness=b), 20_000).std() for b in (0.25, 1.0, 100.0)}
    assert spread[1.0] == pytest.approx(1.0, rel=0.05)
    assert spread[0.25] == pytest.approx(2.0, rel=0.05)  # 1 / sqrt(shape)
    assert spread[100.0] == pytest.approx(0.1, rel=0.05)


def test_bursts_come_together_and_the_gaps_between_them_keep_the_rate() -> None:
    assert due_times_s(Load(2.0, Shape.BURST, burst_size=4), 8) == [2.0] * 4 + [4.0] * 4


def test_constant_arrivals_are_evenly_spaced() -> None:
    assert gaps(Load(4.0, Shape.CONSTANT), 10) == pytest.approx([0.25] * 10)


def test_in_a_closed_loop_everything_is_due_at_once() -> None:
    assert due_times_s(Load(math.inf, max_concurrency=8), 3) == [0.0, 0.0, 0.0]


def test_a_load_that_nothing_bounds_is_refused_with_every_other_mistake() -> None:
    with pytest.raises(ConfigError) as raised:
        Load(burstiness=0.0, burst_size=0)
    assert len(raised.value.problems) == 3
    assert any("--max-concurrency" in problem for problem in raised.value.problems)


def test_made_up_prompts_have_the_lengths_that_were_asked_and_differ() -> None:
    prompts = made_up_prompts(100, TokenRange(3, 9), TokenRange.parse("20:22"), seed=1)
    assert all(len(prompt.text.split()) == prompt.num_input_tokens for prompt in prompts)
    assert {prompt.num_input_tokens for prompt in prompts} == set(range(3, 10))
    assert {prompt.max_tokens for prompt in prompts} == {20, 21, 22}
    assert len({prompt.text for prompt in prompts}) == 100
    assert made_up_prompts(100, TokenRange(3, 9), TokenRange(20, 22), seed=1) == prompts


def test_a_file_of_prompts_is_read_line_by_line_and_begins_again(tmp_path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text('What is rain?\n\n{"prompt": "Count to three.", "max_tokens": 7}\n')
    prompts = prompts_of_file(path, 3, TokenRange(9, 9), seed=0)
    assert [(p.text, p.max_tokens) for p in prompts] == [
        ("What is rain?", 9),
        ("Count to three.", 7),
        ("What is rain?", 9),
    ]


@pytest.mark.parametrize("content", ["", '{"max_tokens": 3}\n', "{not json\n"])
def test_a_file_without_prompts_is_refused(tmp_path, content: str) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"prompts\.txt"):
        prompts_of_file(path, 3, None, seed=0)


@pytest.mark.parametrize("text", ["", "0", "9:3", "a", "3:", "-1"])
def test_a_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        TokenRange.parse(text)
