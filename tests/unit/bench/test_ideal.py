"""The floor against cases that were solved by hand."""

import pytest

from antiphon.bench.ideal.simulation import Arrival, simulate
from antiphon.bench.ideal.timing import EdgeTiming, PipelineTiming, StageKind, StageTiming


def single(**values: float) -> PipelineTiming:
    settings = {"base_s": 1.0, "max_num_seqs": 1, **values}
    return PipelineTiming((StageTiming("thinker", StageKind.SEQUENCES, **settings),), text_stage="thinker")


def test_a_single_server_with_constant_service_makes_those_wait_who_come_too_early() -> None:
    # one token each, 1 s each: an M/D/1 queue seen at these arrivals; the third waits for two
    records = simulate(single(), [Arrival(at_s, 1, 1) for at_s in (0.0, 0.5, 0.75, 5.0)])
    assert [record.end_s for record in records] == [1.0, 2.0, 3.0, 6.0]
    assert [record.text_s[0] - record.sent_s for record in records] == [1.0, 1.5, 2.25, 1.0]


def test_two_in_a_batch_share_the_base_and_the_late_one_joins_at_the_next_step() -> None:
    # 1 s + 0.25 s per sequence. First alone: 1.25. Then both: 1.5 each. The first has 3 tokens, the second 2.
    records = simulate(single(max_num_seqs=2, per_sequence_s=0.25), [Arrival(0.0, 1, 3), Arrival(0.1, 1, 2)])
    assert records[0].text_s == [1.25, 2.75, 4.25]
    assert records[1].text_s == [2.75, 4.25]


def test_a_long_prompt_is_computed_in_pieces_beside_the_decodes_of_others() -> None:
    # 4 positions a step, 0.125 s for each beyond a sequence's first. A decodes (1), so B's 5 positions take 3 + 2.
    pipeline = single(max_num_seqs=2, max_num_batched_tokens=4, per_token_s=0.125)
    records = simulate(pipeline, [Arrival(0.0, 1, 4), Arrival(0.5, 5, 1)])
    assert records[0].text_s == [1.0, 2.25, 3.375, 4.375]
    assert records[1].text_s == [3.375]


def test_a_second_replica_takes_the_second_request() -> None:
    records = simulate(single(replicas=2), [Arrival(0.0, 1, 2), Arrival(0.5, 1, 1), Arrival(1.75, 1, 1)])
    assert [record.end_s for record in records] == [2.0, 1.5, 2.75]


def test_of_two_replicas_with_as_many_requests_the_one_bound_less_often_is_taken_as_the_orchestrator_does() -> None:
    # the first replica has had two requests when the last one comes, the second only one, which ends at 5.125
    arrivals = [Arrival(0.0, 1, 1), Arrival(0.125, 1, 5), Arrival(2.0, 1, 5), Arrival(2.5, 1, 1)]
    assert [record.end_s for record in simulate(single(replicas=2), arrivals)] == [1.0, 5.125, 7.0, 6.125]


THINKER = StageTiming("thinker", StageKind.SEQUENCES, base_s=1.0)
TALKER = StageTiming("talker", StageKind.SEQUENCES, base_s=0.5, outputs_per_input=2.0)
VOCODER = StageTiming("code2wav", StageKind.GENERATOR, base_s=0.25, row_s=0.08)


def omni(first: EdgeTiming, second: EdgeTiming) -> PipelineTiming:
    return PipelineTiming((THINKER, TALKER, VOCODER), (first, second), "thinker", "code2wav")


def test_audio_starts_while_the_text_is_written() -> None:
    # thinker: tokens at 1, 2, 3; rows of positions: 3 (the prompt) at 1, then one each at 2 and 3; none of the last.
    # talker: the prompt at 2, where the first row behind it comes: tokens at 2.5; 3.5 ... 5.5 after the end at 3.
    # vocoder: chunks of 1, then 2: frames at 2.5; 3.5 + 4; 4.5 + 5; 5.5 with the end.
    edges = EdgeTiming("thinker", "talker", of_positions=True), EdgeTiming("talker", "code2wav", 1, 2)
    (record,) = simulate(omni(*edges), [Arrival(0.0, 3, 3)])
    assert record.text_s == [1.0, 2.0, 3.0]
    assert record.audio_s == [2.75, 4.25, 5.25, 5.75]
    assert record.audio_durations_s == pytest.approx([0.08, 0.16, 0.16, 0.08])
    assert record.end_s == 5.75


def test_a_talker_is_no_faster_than_the_rows_that_it_needs() -> None:
    # rows behind the prompt at 2, 3, 4; a token takes 0.5 and needs one of them each, until the end at 4
    edges = EdgeTiming("thinker", "talker", of_positions=True), EdgeTiming("talker", "code2wav", 1, 1)
    (record,) = simulate(omni(*edges), [Arrival(0.0, 1, 4)])
    assert record.audio_s == [2.75, 3.75, 4.75, 5.25, 5.75, 6.25, 6.75, 7.25]


def test_a_whole_hand_off_waits_for_the_last_token() -> None:
    edges = (
        EdgeTiming("thinker", "talker", None, None, of_positions=True, all_chunks=True),
        EdgeTiming("talker", "code2wav", None, None, all_chunks=True),
    )
    (record,) = simulate(omni(*edges), [Arrival(0.0, 3, 3)])
    assert record.audio_s == [3.0 + 6 * 0.5 + 0.25]


def test_rows_that_a_vocoder_computes_again_cost_time() -> None:
    vocoder = StageTiming("code2wav", StageKind.GENERATOR, base_s=0.25, per_token_s=0.01, left_context_rows=2)
    edges = EdgeTiming("thinker", "talker", None, None, all_chunks=True), EdgeTiming("talker", "code2wav", 3, 3)
    (record,) = simulate(PipelineTiming((THINKER, TALKER, vocoder), edges, "", "code2wav"), [Arrival(0.0, 1, 3)])
    assert record.audio_s == pytest.approx([3 + 1.5 + 0.25 + 2 * 0.01, 3 + 3 + 0.25 + 4 * 0.01])


def test_the_capacity_of_a_stage_is_the_rate_of_full_steps() -> None:
    thinker = StageTiming("thinker", StageKind.SEQUENCES, 0.01, 0.001, 0.0001, max_num_seqs=10, replicas=2)
    vocoder = StageTiming("code2wav", StageKind.GENERATOR, base_s=0.04, max_batch_size=4)
    pipeline = PipelineTiming((thinker, vocoder), (EdgeTiming("thinker", "code2wav", 1, 25),))
    capacity = pipeline.capacity_rps(num_input_tokens=101, num_output_tokens=51)
    assert capacity["thinker"] == pytest.approx(2 / (51 * 0.002 + 100 * 0.0001))
    assert capacity["code2wav"] == pytest.approx(1 / (3 * 0.01))


def test_a_queue_at_its_capacity_grows_and_below_it_does_not() -> None:
    pipeline = single()
    below = simulate(pipeline, [Arrival(number * 1.25, 1, 1) for number in range(50)])
    above = simulate(pipeline, [Arrival(number * 0.8, 1, 1) for number in range(50)])
    assert below[-1].end_s - below[-1].sent_s == pytest.approx(1.0)
    assert above[-1].end_s - above[-1].sent_s == pytest.approx(1.0 + 49 * 0.2)


def test_a_request_that_no_edge_serves_is_an_error_of_the_timing() -> None:
    with pytest.raises(ValueError, match="do not lead along"):
        PipelineTiming((THINKER, TALKER), (EdgeTiming("talker", "thinker"),))
