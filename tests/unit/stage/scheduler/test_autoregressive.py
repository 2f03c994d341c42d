"""The autoregressive scheduler: examples of its order, and a state machine that holds it against its invariants."""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from antiphon.errors import StageError
from antiphon.messages.params import RequestParams
from antiphon.stage.request import StageRequest
from antiphon.stage.scheduler.autoregressive import AutoregressiveScheduler, Schedule, Sequence
from antiphon.stage.scheduler.block_pool import BlockPool

BLOCK_SIZE = 4


@dataclass(eq=False)
class Job(Sequence):
    """A sequence, how many positions are known, and how many it wants in the end."""

    known: int = 0
    wanted: int = 0


def known(sequence: Sequence) -> int:
    assert isinstance(sequence, Job)
    return sequence.known


def job(name: str, prompt: int, wanted: int = 0) -> Job:
    request = StageRequest(name, 0, "task", RequestParams(), {}, frozenset(), True)
    return Job(request, known=prompt, wanted=max(wanted, prompt))


def made(num_blocks: int, *, seqs: int = 4, tokens: int = 16) -> tuple[AutoregressiveScheduler, BlockPool]:
    pool = BlockPool(num_blocks=num_blocks, block_size=BLOCK_SIZE)
    return AutoregressiveScheduler(pool, max_num_seqs=seqs, max_num_batched_tokens=tokens, num_positions=known), pool


def carry_out(schedule: Schedule) -> list[tuple[str, int, int]]:
    """Compute the spans: each sequence that is up to date gets one position more. Gives the spans by name."""
    spans = []
    for span in schedule.spans:
        sequence = span.sequence
        assert isinstance(sequence, Job)
        spans.append((sequence.request.request_id, span.start, span.stop))
        sequence.num_computed = span.stop
        if span.stop == sequence.known < sequence.wanted:
            sequence.known += 1
    return spans


def step(scheduler: AutoregressiveScheduler) -> list[tuple[str, int, int]]:
    return carry_out(scheduler.schedule())


def test_a_prompt_longer_than_the_budget_is_prefilled_in_several_steps() -> None:
    scheduler, _ = made(8, tokens=5)
    scheduler.add(job("a", 12, wanted=13))
    assert [step(scheduler) for _ in range(4)] == [[("a", 0, 5)], [("a", 5, 10)], [("a", 10, 12)], [("a", 12, 13)]]
    assert not scheduler.any_runnable()


def test_decodes_come_before_prefills_and_older_ones_first() -> None:
    scheduler, _ = made(16, tokens=6)
    scheduler.add(job("a", 9, wanted=30))
    scheduler.add(job("b", 2, wanted=30))
    assert step(scheduler) == [("a", 0, 6)]
    assert step(scheduler) == [("a", 6, 9), ("b", 0, 2)]
    scheduler.add(job("c", 10, wanted=30))
    assert step(scheduler) == [("a", 9, 10), ("b", 2, 3), ("c", 0, 4)]
    assert step(scheduler) == [("a", 10, 11), ("b", 3, 4), ("c", 4, 8)]


def test_a_place_comes_free_when_a_sequence_is_removed() -> None:
    scheduler, _ = made(16, seqs=1)
    first = job("a", 2, wanted=9)
    scheduler.add(first)
    scheduler.add(job("b", 2, wanted=9))
    assert step(scheduler) == [("a", 0, 2)]
    assert (scheduler.num_running, scheduler.num_waiting) == (1, 1)
    scheduler.remove(first)
    assert step(scheduler) == [("b", 0, 2)]


def test_a_sequence_without_input_or_credit_takes_no_place() -> None:
    scheduler, _ = made(16, seqs=1)
    empty, blocked, ready = job("empty", 0), job("blocked", 2), job("ready", 3)
    blocked.request.is_blocked = True
    for sequence in (empty, blocked):
        scheduler.add(sequence)
    assert not scheduler.any_runnable()
    assert scheduler.schedule().spans == ()
    scheduler.add(ready)
    assert step(scheduler) == [("ready", 0, 3)]


def test_the_newest_yields_and_computes_everything_again() -> None:
    scheduler, pool = made(4)
    old, new = job("old", 7, wanted=13), job("new", 6, wanted=8)
    scheduler.add(old)
    scheduler.add(new)
    assert step(scheduler) == [("old", 0, 7), ("new", 0, 6)]
    assert step(scheduler) == [("old", 7, 8), ("new", 6, 7)]
    assert step(scheduler) == [("old", 8, 9)]  # needs a third block
    assert (scheduler.num_preemptions, new.blocks, new.num_computed) == (1, [], 0)
    while old.num_computed < old.wanted:
        step(scheduler)
        assert new.num_computed == 0
    scheduler.remove(old)
    assert step(scheduler) == [("new", 0, 8)]
    scheduler.remove(new)
    assert pool.num_free == 4


def test_a_preempted_sequence_comes_back_before_younger_ones() -> None:
    scheduler, _ = made(4)
    old, middle = job("old", 7, wanted=13), job("middle", 6, wanted=8)
    for sequence in (old, middle, job("young", 2)):
        scheduler.add(sequence)
    while not scheduler.num_preemptions:
        step(scheduler)
    scheduler.remove(old)
    assert [name for name, _, _ in step(scheduler)] == ["middle", "young"]


def test_a_prompt_that_can_never_fit_is_refused_with_what_to_do() -> None:
    scheduler, _ = made(2)
    scheduler.add(job("a", 7))
    with pytest.raises(StageError, match=r"b needs 9 positions in the KV cache, which holds 8.*num_kv_blocks"):
        scheduler.add(job("b", 8))
    assert scheduler.num_waiting == 1


def test_a_sequence_that_outgrows_the_cache_fails_alone() -> None:
    scheduler, pool = made(2)
    big, small = job("big", 7, wanted=9), job("small", 1, wanted=2)
    scheduler.add(big)
    step(scheduler)
    scheduler.add(small)
    step(scheduler)
    assert big.num_computed == 8
    schedule = scheduler.schedule()
    ((failed, error),) = schedule.failed
    assert failed is big and error.code == "context_length_exceeded"
    scheduler.remove(big)
    assert step(scheduler) == [("small", 0, 1)]
    assert pool.num_free == 1


class AnyLoad(RuleBasedStateMachine):
    """Requests of any size come, wait, are blocked, go on, and are aborted, in a cache of twelve blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler, self.pool = made(12, seqs=3, tokens=7)
        self.jobs: list[Job] = []
        self.num_added = 0

    @rule(prompt=st.integers(0, 40), more=st.integers(0, 20))
    def add(self, prompt: int, more: int) -> None:
        self.num_added += 1
        new = job(f"r{self.num_added}", prompt, min(prompt + more, 12 * BLOCK_SIZE))
        self.scheduler.add(new)
        self.jobs.append(new)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), is_blocked=st.booleans())
    def block(self, data: st.DataObject, is_blocked: bool) -> None:
        data.draw(st.sampled_from(self.jobs)).request.is_blocked = is_blocked

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def row_comes(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(self.jobs))
        chosen.known = min(chosen.known + 1, chosen.wanted)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.forget(data.draw(st.sampled_from(self.jobs)))

    @rule()
    def step(self) -> None:
        could, before = self.scheduler.any_runnable(), self.scheduler.num_preemptions
        running = [j for j in self.jobs if j.blocks]
        schedule = self.scheduler.schedule()
        assert not schedule.failed
        assert could == bool(schedule.spans or self.scheduler.num_preemptions > before)
        self.check_spans(schedule)
        self.check_who_yielded(running)
        carry_out(schedule)
        for finished in [j for j in self.jobs if j.num_computed == j.wanted > 0]:
            self.forget(finished)

    def check_spans(self, schedule: Schedule) -> None:
        sizes = [span.stop - span.start for span in schedule.spans]
        assert sum(sizes) <= 7 and all(size > 0 for size in sizes)
        order = []
        for span in schedule.spans:
            sequence = span.sequence
            assert isinstance(sequence, Job)
            assert not sequence.request.is_blocked
            assert span.start == sequence.num_computed
            assert len(sequence.blocks) * BLOCK_SIZE >= span.stop
            order.append((sequence.known - span.start > 1, sequence.arrival))
        assert order == sorted(order)

    def check_who_yielded(self, running: list[Job]) -> None:
        yielded = [j.arrival for j in running if not j.blocks]
        kept = [j.arrival for j in running if j.blocks]
        assert not yielded or not kept or min(yielded) > max(kept)

    def forget(self, gone: Job) -> None:
        self.scheduler.remove(gone)
        assert gone.blocks == [] and gone.num_computed == 0
        self.jobs.remove(gone)

    @invariant()
    def blocks_are_never_shared_or_lost(self) -> None:
        held = [block for j in self.jobs for block in j.blocks]
        assert len(set(held)) == len(held)
        assert len(held) + self.pool.num_free == 12
        assert all(len(j.blocks) * BLOCK_SIZE >= j.num_computed for j in self.jobs)

    @invariant()
    def there_are_never_more_than_max_num_seqs(self) -> None:
        assert self.scheduler.num_running <= 3
        assert self.scheduler.num_running + self.scheduler.num_waiting == len(self.jobs)

    def teardown(self) -> None:
        """Whatever happened: with input and credit, everything finishes."""
        for each in self.jobs:
            each.request.is_blocked = False
            each.known, each.wanted = max(each.known, 1), max(each.wanted, 1)
        for _ in range(2000):
            if not self.jobs:
                break
            assert self.scheduler.any_runnable()
            self.step()
        assert not self.jobs, "the scheduler goes round in circles"
        assert self.pool.num_free == 12


AnyLoad.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyLoad = AnyLoad.TestCase
