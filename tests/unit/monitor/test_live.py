"""Two pages of /metrics become rates by the clocks of those who counted."""

import pytest

from antiphon.monitor.live import live_view, read_page


def page(read_s: float, uptime_s: float, **values: float):
    """A page with one replica, talker/0, whose last report was made at its age `uptime_s`."""
    labels = '{replica="talker/0",stage="talker"}'
    lines = [
        f'antiphon_uptime_seconds{{process="talker/0"}} {uptime_s}',
        f'antiphon_uptime_seconds{{process="orchestrator"}} {read_s}',
        f"antiphon_loop_busy_seconds_total {read_s / 4}",
        f"antiphon_requests_running{labels} 1",
        f"antiphon_requests_max{labels} 2",
        *(f"antiphon_{name}{labels} {value}" for name, value in values.items()),
    ]
    return read_page("\n".join(lines) + "\n", read_s)


def test_a_rate_is_by_the_time_between_two_reports_and_not_between_two_readings():
    before = page(100.0, 50.0, steps_total=10, step_seconds_total=5.0)
    after = page(102.0, 51.0, steps_total=30, step_seconds_total=5.5)
    (replica,) = live_view(before, after).replicas
    assert replica.steps_per_s == 20
    assert replica.step_busy == 0.5
    assert live_view(before, after).loop_busy == 0.25


def test_a_page_of_an_api_server_that_lags_behind_gives_the_same_rate():
    before = page(100.0, 51.0, steps_total=30)
    after = page(102.0, 50.0, steps_total=10)
    assert live_view(before, after).replicas[0].steps_per_s == 20


def test_a_replica_that_has_started_meanwhile_counts_from_its_start():
    before = page(100.0, 50.0, steps_total=1000)
    after = page(104.0, 2.0, steps_total=30)
    assert live_view(before, after).replicas[0].steps_per_s == 15


def test_a_replica_that_reports_nothing_for_long_is_in_a_step_and_one_that_is_read_twice_at_once_is_not():
    before, soon, late = (page(read_s, 50.0, step_seconds_total=1.0) for read_s in (100.0, 101.0, 103.0))
    assert live_view(before, soon).replicas[0].step_busy == 0.0
    assert live_view(before, late).replicas[0].step_busy == 1.0


@pytest.mark.parametrize(
    ("counts", "made"),
    [
        ({"output_tokens_total": 100, "edge_rows_total": 50}, (100, "tokens/s")),
        ({"output_audio_seconds_total": 3, "edge_rows_total": 50}, (3, "s of audio/s")),
        ({"edge_rows_total": 50}, (50, "rows/s")),
        ({}, (0, "")),
    ],
)
def test_what_a_replica_makes_is_tokens_or_audio_or_rows(counts, made):
    before, after = page(100.0, 50.0, **dict.fromkeys(counts, 0)), page(101.0, 51.0, **counts)
    (replica,) = live_view(before, after).replicas
    assert (replica.made_per_s, replica.made_unit) == made


def test_stages_are_in_the_order_of_the_pipeline_and_replicas_in_that_of_their_numbers():
    names = ("code2wav/0", "talker/10", "talker/2", "thinker/0")
    lines = [f'antiphon_requests_running{{replica="{name}",stage="x"}} 1' for name in names]
    for edge, producer in (
        ("talker->code2wav", "talker/10"),
        ("thinker->talker", "thinker/0"),
        ("client->thinker", "api-server/0"),
    ):
        lines.append(f'antiphon_edge_chunks_total{{edge="{edge}",replica="{producer}",stage="x"}} 1')
    reading = read_page("\n".join(lines) + "\n", 1.0)
    view = live_view(reading, reading)
    assert [each.replica for each in view.replicas] == ["thinker/0", "talker/2", "talker/10", "code2wav/0"]
    assert [each.edge for each in view.edges] == ["client->thinker", "thinker->talker", "talker->code2wav"]


def test_the_load_for_the_verdict_has_the_edges_between_stages_only():
    lines = "".join(
        f'antiphon_edge_chunks_total{{edge="{edge}",replica="{producer}",stage="x"}} 1\n'
        for edge, producer in (("client->thinker", "api-server/0"), ("thinker->talker", "thinker/0"))
    )
    reading = read_page(lines, 1.0)
    view = live_view(reading, reading)
    assert [(edge.edge, edge.producer) for edge in view.edges] == [
        ("client->thinker", "api-server/0"),
        ("thinker->talker", "thinker/0"),
    ]
    assert view.load.edges == ("thinker->talker",)
