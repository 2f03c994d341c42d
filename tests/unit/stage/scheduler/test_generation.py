"""The generation scheduler: who is in the next batch."""

from antiphon.messages.params import RequestParams
from antiphon.stage.request import StageRequest
from antiphon.stage.scheduler.generation import GenerationScheduler, Job


def requests(count: int) -> list[StageRequest]:
    return [StageRequest(f"req-{i}", 0, "task", RequestParams(), {}, frozenset(), True) for i in range(count)]


def filled(
    count: int, *, max_num_seqs: int, max_batch_size: int
) -> tuple[GenerationScheduler[Job], list[StageRequest]]:
    scheduler = GenerationScheduler[Job](max_num_seqs=max_num_seqs, max_batch_size=max_batch_size)
    made = requests(count)
    for request in made:
        scheduler.add(Job(request))
    return scheduler, made


def batch(scheduler: GenerationScheduler[Job], idle: tuple[str, ...] = ()) -> list[str]:
    return [job.request.request_id for job in scheduler.schedule(lambda job: job.request.request_id not in idle)]


def test_batches_go_round_so_that_everybody_is_served_equally() -> None:
    scheduler, _ = filled(5, max_num_seqs=5, max_batch_size=2)
    served = [batch(scheduler) for _ in range(5)]
    assert served == [
        ["req-0", "req-1"],
        ["req-2", "req-3"],
        ["req-4", "req-0"],
        ["req-1", "req-2"],
        ["req-3", "req-4"],
    ]


def test_at_most_max_num_seqs_are_running_and_the_next_moves_up_when_one_leaves() -> None:
    scheduler, _ = filled(4, max_num_seqs=2, max_batch_size=8)
    assert batch(scheduler) == ["req-0", "req-1"]
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 2)
    scheduler.remove("req-0")
    assert batch(scheduler) == ["req-1", "req-2"]
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)


def test_blocked_and_idle_requests_are_passed_over_and_keep_their_turn() -> None:
    scheduler, made = filled(4, max_num_seqs=4, max_batch_size=2)
    made[0].is_blocked = True
    assert batch(scheduler, idle=("req-1",)) == ["req-2", "req-3"]
    made[0].is_blocked = False
    assert batch(scheduler) == ["req-0", "req-1"]


def test_there_is_no_work_if_everybody_is_blocked_or_idle() -> None:
    scheduler, made = filled(2, max_num_seqs=2, max_batch_size=2)
    assert scheduler.any_runnable(lambda _job: True)
    made[0].is_blocked = True
    assert not scheduler.any_runnable(lambda job: job.request.request_id == "req-0")
    assert batch(scheduler, idle=("req-1",)) == []


def test_a_request_that_waits_for_a_place_is_no_work() -> None:
    scheduler, _ = filled(2, max_num_seqs=1, max_batch_size=2)
    assert not scheduler.any_runnable(lambda job: job.request.request_id == "req-1")


def test_a_waiting_request_can_be_removed_and_an_unknown_one_is_ignored() -> None:
    scheduler, _ = filled(3, max_num_seqs=1, max_batch_size=2)
    assert batch(scheduler) == ["req-0"]
    scheduler.remove("req-1")
    scheduler.remove("req-9")
    scheduler.remove("req-0")
    assert batch(scheduler) == ["req-2"]
    assert scheduler.num_waiting == 0
