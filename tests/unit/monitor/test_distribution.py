"""Distributions as counters: cumulative buckets, as Prometheus wants them."""

from antiphon.monitor.distribution import Distribution


def test_a_value_is_counted_in_every_bucket_that_it_does_not_exceed():
    distribution = Distribution((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        distribution.observe(value)
    counters = {
        (each.name, dict(each.labels).get("le")): each.value for each in distribution.counters("x", (("a", "b"),))
    }
    assert counters == {
        ("x_bucket", "0.1"): 2,
        ("x_bucket", "1.0"): 3,
        ("x_bucket", "+Inf"): 4,
        ("x_sum", None): 7.65,
        ("x_count", None): 4,
    }
    assert distribution.count == 4
