import pytest

from antiphon.bench.measures import Bound, Goal, Row, Sample, distribution, percentile

TTFA = Goal(Bound.AT_MOST, 1.5, 15.0)
THROUGHPUT = Goal(Bound.AT_LEAST, 0.8)


def test_a_percentile_lies_between_the_two_nearest_values() -> None:
    assert percentile([40.0, 10.0, 20.0, 30.0], 50) == 25.0
    assert percentile([40.0, 10.0, 20.0, 30.0], 90) == pytest.approx(37.0)


def test_the_outer_percentiles_are_the_extremes() -> None:
    assert percentile([3.0, 1.0, 2.0], 0) == 1.0
    assert percentile([3.0, 1.0, 2.0], 100) == 3.0


def test_a_percentile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="measure at least once"):
        percentile([], 50)


def test_a_p99_needs_a_hundred_values() -> None:
    assert "p99" not in distribution([1.0] * 99)
    assert distribution([float(value) for value in range(101)])["p99"] == 99.0


def test_a_distribution_tells_mean_median_and_number() -> None:
    summary = distribution([1.0, 2.0, 6.0])
    assert (summary["n"], summary["mean"], summary["median"]) == (3.0, 3.0, 2.0)


def test_an_upper_goal_allows_the_factor_and_the_addition_and_no_more() -> None:
    assert Row("ttfa", "ms", 45.0, 20.0, TTFA).is_met is True
    assert Row("ttfa", "ms", 45.1, 20.0, TTFA).is_met is False


def test_a_lower_goal_asks_for_the_factor() -> None:
    assert Row("speech", "audio s/s", 80.0, 100.0, THROUGHPUT).is_met is True
    assert Row("speech", "audio s/s", 79.9, 100.0, THROUGHPUT).is_met is False


def test_a_row_without_a_goal_is_neither_met_nor_missed() -> None:
    assert Row("context", "ms", 1.0, 2.0).is_met is None


def test_the_ratio_is_ours_over_the_reference() -> None:
    assert Row("ttft", "ms", 30.0, 20.0).ratio == 1.5


def test_a_goal_reads_as_a_sentence() -> None:
    assert TTFA.describe("ms") == "at most 1.5 x + 15 ms"
    assert THROUGHPUT.describe("tok/s") == "at least 0.8 x"


def test_a_sample_gives_work_per_second_and_per_second_of_a_core() -> None:
    sample = Sample(wall_s=2.0, cpu_s=4.0, amount=100.0)
    assert (sample.per_wall_s, sample.per_cpu_s) == (50.0, 25.0)
