"""The verdict on loads that are written down by hand."""

import pytest

from antiphon.monitor.verdict import Load, ReplicaLoad, stages_in_order, verdict_of

EDGES = ("client->thinker", "thinker->talker", "talker->code2wav")
QUIET = tuple(
    ReplicaLoad(f"{stage}/0", step_busy=0.2, running=2, slots=8) for stage in ("code2wav", "talker", "thinker")
)


def full(replica: str, step_busy: float = 0.97, credit_wait: float = 0.0) -> ReplicaLoad:
    return ReplicaLoad(replica, step_busy=step_busy, credit_wait=credit_wait, running=8, waiting=5, slots=8)


def test_a_quiet_server_has_no_bottleneck_and_names_its_busiest_replica() -> None:
    verdict = verdict_of(Load(replicas=(*QUIET, ReplicaLoad("talker/1", step_busy=0.6)), edges=EDGES))
    assert verdict.bottleneck == ""
    assert str(verdict) == "nothing is saturated; the busiest is talker/1, in steps 60 % of the time"


def test_a_server_without_replicas_has_no_bottleneck() -> None:
    assert str(verdict_of(Load())) == "nothing is saturated"


def test_a_saturated_stage_is_named_with_how_its_producer_waits() -> None:
    thinker = ReplicaLoad("thinker/0", step_busy=0.3, credit_wait=0.61, running=8, waiting=3, slots=8)
    load = Load(replicas=(thinker, full("talker/0"), full("talker/1"), *QUIET[:1]), edges=EDGES)
    assert str(verdict_of(load)) == (
        "talker is the bottleneck: 2 of 2 replicas saturated, in steps 97 % of the time, 10 requests wait for a slot, "
        "thinker waits on credit 61 % of the time"
    )


def test_one_slow_replica_of_two_is_named() -> None:
    other = ReplicaLoad("talker/1", step_busy=0.3, running=2, slots=8)
    verdict = verdict_of(Load(replicas=(*QUIET[::2], full("talker/0"), other), edges=EDGES))
    assert verdict.bottleneck == "talker"
    assert "1 of 2 replicas saturated (talker/0)" in verdict.reason


def test_of_two_saturated_stages_the_one_downstream_holds_the_other_up() -> None:
    load = Load(replicas=(full("code2wav/0"), full("thinker/0"), *QUIET[1:2]), edges=EDGES)
    assert verdict_of(load).bottleneck == "code2wav"


def test_a_stage_that_itself_waits_for_credit_is_not_the_bottleneck() -> None:
    load = Load(replicas=(full("thinker/0"), full("talker/0", credit_wait=0.7), *QUIET[:1]), edges=EDGES)
    assert verdict_of(load).bottleneck == "thinker"


def test_a_stage_with_free_slots_is_the_bottleneck_if_its_producer_waits_for_its_credit() -> None:
    blocked = ReplicaLoad("talker/0", step_busy=0.5, credit_wait=0.6, running=3, slots=8)
    slow = ReplicaLoad("code2wav/0", step_busy=0.98, running=3, slots=8)
    assert verdict_of(Load(replicas=(slow, blocked), edges=EDGES)).bottleneck == "code2wav"
    assert verdict_of(Load(replicas=(slow, *QUIET[1:]), edges=EDGES)).bottleneck == ""


def test_full_slots_whose_requests_wait_for_rows_are_not_saturated() -> None:
    load = Load(replicas=(full("talker/0", step_busy=0.3), full("thinker/0"), *QUIET[:1]), edges=EDGES)
    assert verdict_of(load).bottleneck == "thinker"


def test_a_saturated_stage_that_another_one_feeds_too_slowly_is_passed_over() -> None:
    load = Load(replicas=(full("code2wav/0", step_busy=0.65), full("talker/0"), *QUIET[2:]), edges=EDGES)
    assert verdict_of(load).bottleneck == "talker"


def test_slots_that_are_not_known_are_full_when_requests_wait() -> None:
    replica = ReplicaLoad("talker/0", step_busy=0.9, running=1, waiting=4)
    assert verdict_of(Load(replicas=(replica,))).bottleneck == "talker"


def test_a_busy_loop_is_named_before_any_stage() -> None:
    load = Load(loop_busy=0.97, loop_lag_s=0.25, replicas=(full("talker/0"),), edges=EDGES)
    assert str(verdict_of(load)) == (
        "orchestrator is the bottleneck: its loop was busy 97 % of the time, a message lay unread for up to 250 ms"
    )


def test_outputs_that_grow_old_name_the_api_server() -> None:
    late = ReplicaLoad("code2wav/1", step_busy=0.99, running=8, waiting=2, outputs_queue=800, oldest_output_s=3.1)
    verdict = verdict_of(Load(replicas=(*QUIET, late), edges=EDGES))
    assert verdict.bottleneck == "api-server"
    assert verdict.reason == "800 outputs of code2wav/1 lie unread, the oldest for 3.1 s on average"


def test_requests_that_only_admission_holds_back_are_said_to_be() -> None:
    verdict = verdict_of(Load(requests_waiting=40, requests_inflight=8, replicas=QUIET, edges=EDGES))
    assert verdict.bottleneck == "admission"
    assert "40 requests wait while 8 run" in verdict.reason
    assert "admission.max_inflight" in verdict.reason


@pytest.mark.parametrize(
    ("edges", "order"),
    [
        (EDGES, ["thinker", "talker", "code2wav"]),
        ((), ["code2wav", "talker", "thinker"]),
        (("a->b", "b->a"), ["code2wav", "talker", "thinker"]),
        (("talker->code2wav", "code2wav->talker"), ["thinker", "code2wav", "talker"]),
    ],
)
def test_stages_are_ordered_by_their_edges_even_if_these_go_round(edges: tuple[str, ...], order: list[str]) -> None:
    assert stages_in_order(Load(replicas=QUIET, edges=edges)) == order
