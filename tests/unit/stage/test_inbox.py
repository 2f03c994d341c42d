"""The inbox: chunks in order, every wait with a deadline, nothing held after the end."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from antiphon.config.pipeline import EdgeRule, StartWhen
from antiphon.connector.inproc import InprocConnector
from antiphon.errors import ChunkGapError, HandoffTimeoutError, ReplicaDiedError, StageError
from antiphon.messages.error_info import ErrorInfo, to_info
from antiphon.messages.interstage import ChunkFlag, ChunkForm, ChunkHeader, TensorSpec
from antiphon.stage.inbox import Inbox, InputFailed, InputStarted
from antiphon.stage.request import EdgeInput

EDGE, OTHER = "thinker->talker", "listener->talker"
FIRST, ALL = StartWhen.FIRST_CHUNK, StartWhen.ALL_CHUNKS
EARLY_S = 30.0
_numbers = itertools.count()


class Bench:
    """An inbox behind a real connector, and a producer that puts to it."""

    def __init__(self) -> None:
        number = next(_numbers)
        self.producer = InprocConnector(f"inbox-producer-{number}", arena_bytes=1 << 20)
        self.consumer = InprocConnector(f"inbox-consumer-{number}", arena_bytes=1 << 20)
        self.producer.startup()
        self.consumer.startup()
        self.inbox = Inbox(self.consumer, early_deadline_s=EARLY_S)

    def open(self, *, epoch: int = 0, now_s: float = 0.0, **start_when: StartWhen) -> dict[str, EdgeInput]:
        """Open req-1 with one edge (`edge=FIRST`), or two (`other=ALL` as well)."""
        edges = {{"edge": EDGE, "other": OTHER}[name]: when for name, when in start_when.items()}
        rules = {edge: EdgeRule(edge, when, 10.0) for edge, when in edges.items()}
        return self.inbox.open("req-1", epoch, dict.fromkeys(edges, "thinker/0"), rules, now_s)

    def put(
        self,
        seq: int,
        values: list[int],
        flags: ChunkFlag = ChunkFlag.NONE,
        *,
        edge: str = EDGE,
        epoch: int = 0,
        error: ErrorInfo | None = None,
        now_s: float = 0.0,
    ) -> None:
        rows = np.array(values, np.int32)
        form = ChunkForm("req-1", epoch, edge, "thinker/0", (TensorSpec("code", "int32", (), True),))
        header = ChunkHeader(form, seq, rows=len(values), flags=int(flags), error=error)
        assert self.producer.put(self.consumer.address, header, [{"code": rows}], {})
        self.inbox.receive(now_s)

    @property
    def num_leases(self) -> int:
        self.producer.get()  # takes in credit
        return self.producer.statistics().num_leases

    def failures(self) -> list[Exception]:
        return [event.error for event in self.inbox.events() if isinstance(event, InputFailed)]

    def assert_nothing_is_held_after_close(self) -> None:
        self.inbox.close("req-1")
        self.inbox.end_step()
        assert self.inbox.num_held() == 0
        assert self.num_leases == 0


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.producer.close()
    made.consumer.close()


def test_rows_of_chunks_come_out_in_order_and_their_credit_goes_back_when_they_are_taken(bench: Bench) -> None:
    edge = bench.open(edge=FIRST)[EDGE]
    bench.put(0, [1, 2])
    bench.put(1, [3], ChunkFlag.END)
    assert edge.take(1)["code"].tolist() == [1]
    bench.inbox.end_step()
    assert bench.num_leases == 1, "a small last chunk takes no credit"
    assert not edge.exhausted
    assert edge.take()["code"].tolist() == [2, 3]
    assert edge.exhausted
    assert bench.num_leases == 1, "the step is not over: the rows may still be read"
    bench.inbox.end_step()
    assert bench.num_leases == 0
    bench.assert_nothing_is_held_after_close()


@pytest.mark.parametrize("second_seq", [0, 2])
def test_a_missing_or_doubled_chunk_is_a_gap_that_names_edge_producer_and_both_numbers(
    bench: Bench, second_seq: int
) -> None:
    bench.open(edge=FIRST)
    bench.put(0, [1])
    bench.put(second_seq, [2])
    (error,) = bench.failures()
    assert isinstance(error, ChunkGapError)
    assert f"{EDGE}: chunk {second_seq} of req-1 came from thinker/0 where 1 was expected" in error.message
    bench.assert_nothing_is_held_after_close()


def test_the_first_chunk_starts_a_first_chunk_edge_once(bench: Bench) -> None:
    bench.open(edge=FIRST)
    assert bench.inbox.events() == []
    bench.put(0, [1])
    bench.put(1, [2])
    assert bench.inbox.events() == [InputStarted("req-1")]
    bench.put(2, [], ChunkFlag.END)
    assert bench.inbox.events() == []


def test_all_chunks_starts_at_the_end_and_holds_nothing_of_the_producer_before(bench: Bench) -> None:
    edge = bench.open(edge=ALL)[EDGE]
    for seq in range(3):
        bench.put(seq, [seq])
        assert bench.num_leases == 0
    assert bench.inbox.events() == []
    bench.put(3, [3], ChunkFlag.END)
    assert bench.inbox.events() == [InputStarted("req-1")]
    assert edge.take()["code"].tolist() == [0, 1, 2, 3]
    bench.assert_nothing_is_held_after_close()


@pytest.mark.parametrize(("first_edge", "flags"), [(ALL, ChunkFlag.END), (FIRST, ChunkFlag.NONE)])
def test_an_edge_that_is_ready_holds_nothing_of_its_producer_while_another_edge_is_not(
    bench: Bench, first_edge: StartWhen, flags: ChunkFlag
) -> None:
    inputs = bench.open(edge=first_edge, other=ALL)
    bench.put(0, [7], flags)
    assert bench.inbox.events() == []
    assert bench.num_leases == 0
    bench.put(0, [8], ChunkFlag.END, edge=OTHER)
    assert bench.inbox.events() == [InputStarted("req-1")]
    assert inputs[EDGE].take()["code"].tolist() == [7]
    assert inputs[OTHER].take()["code"].tolist() == [8]
    bench.assert_nothing_is_held_after_close()


def test_an_end_without_a_row_starts_either_kind_of_edge(bench: Bench) -> None:
    edge = bench.open(edge=ALL)[EDGE]
    bench.put(0, [], ChunkFlag.END)
    assert bench.inbox.events() == [InputStarted("req-1")]
    assert edge.exhausted
    assert edge.take() == {}


def test_chunks_that_come_before_their_start_request_are_kept_in_order(bench: Bench) -> None:
    bench.put(0, [1])
    bench.put(1, [2], ChunkFlag.END)
    assert bench.inbox.num_held() == 2
    edge = bench.open(edge=FIRST)[EDGE]
    assert bench.inbox.num_held() == 1
    assert bench.inbox.events() == [InputStarted("req-1")]
    assert edge.take()["code"].tolist() == [1, 2]
    bench.assert_nothing_is_held_after_close()


def test_early_chunks_nobody_asks_for_are_given_back_after_their_deadline(bench: Bench) -> None:
    bench.put(0, [1], now_s=100.0)
    bench.inbox.expire(100.0 + EARLY_S)
    assert (bench.inbox.num_held(), bench.num_leases) == (1, 1)
    bench.inbox.expire(100.1 + EARLY_S)
    assert (bench.inbox.num_held(), bench.num_leases) == (0, 0)


def test_a_start_request_that_comes_after_its_chunks_were_given_up_fails_at_once_and_says_what_to_raise(
    bench: Bench,
) -> None:
    bench.put(0, [1], now_s=100.0)
    bench.put(1, [2], now_s=100.0)
    bench.inbox.expire(100.1 + EARLY_S)
    bench.put(2, [3], now_s=131.0)
    assert (bench.inbox.num_held(), bench.num_leases) == (0, 0)
    bench.open(edge=FIRST, now_s=132.0)
    (error,) = bench.failures()
    assert isinstance(error, HandoffTimeoutError)
    for word in (EDGE, "chunk 1 of req-1", "thinker/0", "30 s", "timeouts.early_chunk_s"):
        assert word in error.message
    bench.assert_nothing_is_held_after_close()


def test_early_chunks_beyond_the_bound_fail_their_own_request_and_no_other(bench: Bench) -> None:
    for number in range(4096):
        header = ChunkHeader(ChunkForm(f"other-{number % 7}", 0, EDGE, "thinker/0"), number // 7)
        assert bench.producer.put(bench.consumer.address, header, [], {})
    bench.inbox.receive(0.0)
    bench.put(0, [1])
    assert (bench.inbox.num_held(), bench.num_leases) == (4096, 0)
    bench.open(edge=FIRST)
    (error,) = bench.failures()
    assert isinstance(error, HandoffTimeoutError)
    assert "4096 chunks wait" in error.message
    bench.inbox.open("other-3", 0, {EDGE: "thinker/0"}, {EDGE: EdgeRule(EDGE, FIRST, 10.0)}, 0.0)
    assert bench.inbox.events() == [InputStarted("other-3")]


def test_chunks_of_a_closed_request_are_given_back_at_once(bench: Bench) -> None:
    bench.open(edge=FIRST)
    bench.put(0, [1])
    bench.assert_nothing_is_held_after_close()
    bench.put(1, [2])
    assert (bench.inbox.num_held(), bench.num_leases) == (0, 0)


def test_chunks_of_an_older_epoch_are_given_back_and_those_of_a_newer_one_wait(bench: Bench) -> None:
    edge = bench.open(epoch=1, edge=FIRST)[EDGE]
    bench.put(0, [1], epoch=0)
    assert (bench.num_leases, edge.num_rows, bench.inbox.events()) == (0, 0, [])
    bench.put(0, [2], epoch=2)
    assert (bench.num_leases, edge.num_rows) == (1, 0)
    bench.inbox.close("req-1")
    assert bench.open(epoch=2, edge=FIRST)[EDGE].take()["code"].tolist() == [2]


def test_a_chunk_on_an_edge_that_is_not_bound_is_given_back(bench: Bench) -> None:
    bench.open(edge=FIRST)
    bench.put(0, [1], edge=OTHER)
    assert (bench.num_leases, bench.inbox.events()) == (0, [])


def test_an_error_chunk_fails_the_input_with_the_producers_own_error(bench: Bench) -> None:
    bench.open(edge=FIRST)
    bench.put(0, [1])
    bench.put(1, [], ChunkFlag.ERROR, error=to_info(ReplicaDiedError("gone")))
    (error,) = bench.failures()
    assert isinstance(error, ReplicaDiedError)
    assert error.message == "gone"
    bench.assert_nothing_is_held_after_close()


def test_an_abort_without_a_reason_names_who_aborted(bench: Bench) -> None:
    bench.open(edge=FIRST)
    bench.put(0, [], ChunkFlag.ABORT)
    (error,) = bench.failures()
    assert isinstance(error, StageError)
    assert error.message == "thinker/0 aborted req-1"


def test_a_silent_edge_times_out_and_the_error_names_edge_chunk_replica_and_setting(bench: Bench) -> None:
    edge = bench.open(edge=FIRST, now_s=0.0)[EDGE]
    bench.put(0, [1], now_s=5.0)
    edge.take()
    bench.inbox.expire(14.9)
    assert bench.failures() == []
    bench.inbox.expire(15.1)
    (error,) = bench.failures()
    assert isinstance(error, HandoffTimeoutError)
    assert error.message == (
        f"{EDGE}: waited 10 s for chunk 1 of req-1 from thinker/0; raise edges.{EDGE}.deadline_s or see thinker/0's log"
    )
    bench.assert_nothing_is_held_after_close()


def test_an_edge_that_has_rows_or_has_ended_does_not_time_out(bench: Bench) -> None:
    edge = bench.open(edge=FIRST, now_s=0.0)[EDGE]
    bench.put(0, [1])
    bench.inbox.expire(1000.0)
    edge.take()
    bench.put(1, [], ChunkFlag.END)
    bench.inbox.expire(2000.0)
    assert bench.failures() == []
