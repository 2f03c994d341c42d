"""EdgeCursor: rows leave in order, each once, in the chunks of the edge's plan, and end exactly once."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.config.pipeline import WHOLE, ChunkPlan
from antiphon.connector.cursor import EdgeCursor, EdgeTarget
from antiphon.connector.inproc import InprocConnector
from antiphon.connector.layout import Arrays, layout_of
from antiphon.errors import StageError
from antiphon.messages.error_info import ErrorInfo
from antiphon.messages.interstage import ChunkFlag, ChunkHeader

EAGER = ChunkPlan(1, 1)
ERROR = ErrorInfo("StageError", "no voice")


@dataclass(frozen=True)
class Sent:
    """One chunk as it was put."""

    header: ChunkHeader
    arrays: Arrays


class RecordingConnector(InprocConnector):
    """Keeps copies of what is put. Refuses a payload once for every True in `refusals`, as a full arena does."""

    def __init__(
        self, *, refusals: Sequence[bool] = (), limit_bytes: int = 1 << 20, window_bytes: int = 1 << 20
    ) -> None:
        super().__init__("recorder", arena_bytes=0, window_bytes=window_bytes)
        self.chunks: list[Sent] = []
        self.refusals = list(refusals)
        self.limit_bytes = limit_bytes

    def put(self, peer: str, header: ChunkHeader, rows: Collection[Arrays], whole: Arrays) -> bool:
        assert peer == "ipc://talker"
        layout = layout_of(header.form.encoded)
        size_bytes = layout.check_size(header, self.limit_bytes).size_bytes
        if (header.rows or whole) and self.refusals and self.refusals.pop():
            return False
        memory = bytearray(size_bytes)
        layout.write(header, rows, whole, memory, 0)
        self.chunks.append(Sent(header, layout.read(header, bytes(memory), 0)))
        return True


def cursor_of(plan: ChunkPlan = EAGER, max_chunk_bytes: int = 1 << 20) -> EdgeCursor:
    target = EdgeTarget("req-1", 3, "thinker->talker", "thinker/0", "ipc://talker", plan)
    return EdgeCursor(target, max_chunk_bytes)


def rows(start: int, count: int) -> dict[str, np.ndarray]:
    """Rows that say which they are: `id` counts up and `pair` is [id, -id]."""
    ids = np.arange(start, start + count, dtype=np.int64)
    return {"id": ids, "pair": np.stack([ids, -ids], axis=1).astype(np.float32)}


def row_ids(connector: RecordingConnector) -> list[int]:
    return [int(row) for chunk in connector.chunks if "id" in chunk.arrays for row in chunk.arrays["id"]]


def sizes(connector: RecordingConnector) -> list[int]:
    return [chunk.header.rows for chunk in connector.chunks]


def check_protocol(connector: RecordingConnector, num_rows: int, end: ChunkFlag) -> None:
    """Order, numbering, values and the one end of a finished edge."""
    headers = [chunk.header for chunk in connector.chunks]
    assert [header.seq for header in headers] == list(range(len(headers)))
    assert [header.flags for header in headers] == [0] * (len(headers) - 1) + [int(end)]
    first_rows = np.cumsum([0, *sizes(connector)])
    assert [header.first_row for header in headers] == first_rows[:-1].tolist()
    assert row_ids(connector) == list(range(num_rows))
    for chunk in connector.chunks:
        if chunk.header.rows:
            np.testing.assert_array_equal(chunk.arrays["pair"][:, 1], -chunk.arrays["id"])
    assert {(f.request_id, f.epoch, f.edge, f.producer) for f in (header.form for header in headers)} == {
        ("req-1", 3, "thinker->talker", "thinker/0")
    }


PLANS = st.builds(ChunkPlan, st.integers(1, 6), st.integers(1, 6)) | st.just(WHOLE)


@given(
    plan=PLANS,
    steps=st.lists(st.integers(0, 7) | st.just("flush"), max_size=20),
    refusals=st.lists(st.booleans(), max_size=40),
    max_rows=st.integers(1, 8),
)
def test_any_sequence_of_steps_sends_every_row_once_in_order(
    plan: ChunkPlan, steps: list[int | str], refusals: list[bool], max_rows: int
) -> None:
    limit_bytes = max_rows * 16  # int64 + two float32
    connector = RecordingConnector(refusals=refusals, limit_bytes=limit_bytes)
    cursor = cursor_of(plan, limit_bytes)
    for step in steps:
        if isinstance(step, int):
            cursor.append(rows(cursor.rows_produced, step), {})
        else:
            cursor.flush(connector)
            assert not cursor.is_closed
    num_rows = cursor.rows_produced
    cursor.finish()
    while not cursor.is_closed:
        cursor.flush(connector)
    assert cursor.flush(connector)
    check_protocol(connector, num_rows, ChunkFlag.END)
    assert max(sizes(connector)) <= max_rows
    assert cursor.rows_sent == num_rows


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 6), st.integers(1, 6))
def test_a_chunk_has_at_least_the_rows_of_the_plan_until_the_end(counts: list[int], first: int, later: int) -> None:
    connector, cursor = RecordingConnector(), cursor_of(ChunkPlan(first, later))
    for count in counts:
        cursor.append(rows(cursor.rows_produced, count), {})
        cursor.flush(connector)
        wanted = later if connector.chunks else first
        assert cursor.rows_produced - cursor.rows_sent < wanted
    assert all(size >= (first if seq == 0 else later) for seq, size in enumerate(sizes(connector)))


def test_the_plan_cuts_the_first_chunk_and_the_later_ones() -> None:
    connector, cursor = RecordingConnector(), cursor_of(ChunkPlan(2, 4))
    for start in range(8):
        cursor.append(rows(start, 1), {})
        cursor.flush(connector)
    cursor.finish()
    cursor.flush(connector)
    assert sizes(connector) == [2, 4, 2]
    check_protocol(connector, 8, ChunkFlag.END)


def test_a_whole_edge_sends_one_chunk_when_the_producer_has_finished() -> None:
    connector, cursor = RecordingConnector(), cursor_of(WHOLE)
    for start in range(0, 30, 3):
        cursor.append(rows(start, 3), {})
        cursor.flush(connector)
    assert connector.chunks == []
    cursor.finish()
    cursor.flush(connector)
    assert sizes(connector) == [30]
    check_protocol(connector, 30, ChunkFlag.END)


def test_what_exceeds_the_largest_chunk_is_split() -> None:
    connector, cursor = RecordingConnector(limit_bytes=100), cursor_of(WHOLE, 100)
    cursor.append(rows(0, 20), {})
    cursor.finish()
    cursor.flush(connector)
    assert sizes(connector) == [6, 6, 6, 2]
    check_protocol(connector, 20, ChunkFlag.END)


def test_arrays_of_the_request_go_once_with_the_first_chunk_and_leave_room_for_it() -> None:
    connector, cursor = RecordingConnector(limit_bytes=100), cursor_of(EAGER, 100)
    cursor.append(rows(0, 10), {"doc": np.arange(50, dtype=np.uint8)})
    cursor.finish()
    cursor.flush(connector)
    assert sizes(connector) == [3, 6, 1]
    assert [spec.key for spec in connector.chunks[0].header.form.tensors if not spec.per_row] == ["doc"]
    np.testing.assert_array_equal(connector.chunks[0].arrays["doc"], np.arange(50))
    assert all("doc" not in chunk.arrays for chunk in connector.chunks[1:])


def test_arrays_of_the_request_go_with_the_end_if_there_are_no_rows() -> None:
    connector, cursor = RecordingConnector(), cursor_of()
    cursor.append({}, {"doc": np.arange(3)})
    assert cursor.flush(connector) and connector.chunks == []
    cursor.finish()
    cursor.flush(connector)
    assert [list(chunk.arrays) for chunk in connector.chunks] == [["doc"]]
    check_protocol(connector, 0, ChunkFlag.END)


def test_a_refused_chunk_is_sent_again_as_it_was() -> None:
    connector, cursor = RecordingConnector(refusals=[True]), cursor_of()
    cursor.append(rows(0, 2), {"doc": np.arange(3)})
    assert not cursor.flush(connector)
    assert cursor.rows_sent == 0
    cursor.append(rows(2, 1), {})
    cursor.finish()
    assert cursor.flush(connector)
    assert list(connector.chunks[0].arrays) == ["id", "pair", "doc"]
    check_protocol(connector, 3, ChunkFlag.END)


@given(
    num_before=st.integers(0, 10),
    num_kept=st.integers(0, 10),
    is_sent=st.booleans(),
    counts=st.lists(st.integers(0, 6), max_size=6),
)
def test_rows_that_a_replay_repeats_are_dropped(
    num_before: int, num_kept: int, is_sent: bool, counts: list[int]
) -> None:
    connector, cursor = RecordingConnector(), cursor_of()
    cursor.append(rows(0, num_before), {})
    if is_sent:
        cursor.flush(connector)
    row = min(num_kept, num_before)
    cursor.replay_from(row)
    for count in [*counts, 10]:
        cursor.append(rows(row, count), {})
        cursor.flush(connector)
        row += count
    cursor.finish()
    cursor.flush(connector)
    check_protocol(connector, row, ChunkFlag.END)


@pytest.mark.parametrize(("flag", "error"), [(ChunkFlag.ERROR, ERROR), (ChunkFlag.ABORT, None)])
def test_a_failure_drops_what_is_pending_and_ends_the_edge(flag: ChunkFlag, error: ErrorInfo | None) -> None:
    connector, cursor = RecordingConnector(), cursor_of(ChunkPlan(2, 100))
    cursor.append(rows(0, 2), {})
    cursor.flush(connector)
    cursor.append(rows(2, 5), {"doc": np.arange(3)})
    cursor.fail(flag, error)
    cursor.finish()
    assert cursor.flush(connector) and cursor.is_closed
    assert sizes(connector) == [2, 0]
    assert connector.chunks[1].arrays == {}
    assert connector.chunks[1].header.error == error
    check_protocol(connector, 2, flag)


def test_a_refused_chunk_is_tried_as_what_the_window_holds_and_the_rest_follows() -> None:
    """A row is 16 bytes in two arrays padded to 64. `refusals` is read from its end: the first and third put fail."""
    connector = RecordingConnector(refusals=[False, True, False, True], window_bytes=100 + 2 * 64)
    cursor = cursor_of(ChunkPlan(8, 8))
    cursor.append(rows(0, 10), {})
    assert cursor.flush(connector)
    cursor.finish()
    assert not cursor.flush(connector), "four rows are within the window already"
    assert cursor.flush(connector)
    assert [sent.header.rows for sent in connector.chunks] == [6, 4]
    assert np.concatenate([sent.arrays["id"] for sent in connector.chunks]).tolist() == list(range(10))
    assert [sent.header.flags for sent in connector.chunks] == [0, ChunkFlag.END]


def test_what_a_window_holds_is_counted_with_the_padding_of_its_arrays() -> None:
    """12 rows of 16 bytes are within the window of 200, but two arrays of 96 bytes take 256."""
    producer = InprocConnector("cursor-producer", arena_bytes=1024, window_bytes=200)
    producer.startup()
    others = cursor_of(max_chunk_bytes=producer.max_chunk_bytes)
    others.append({"id": np.zeros(64, np.int64)}, {})
    assert others.flush(producer), "half of the arena is for who comes first"
    cursor = EdgeCursor(EdgeTarget("req-2", 0, "e", "p/0", "ipc://talker", EAGER), 1 << 20)
    cursor.append(rows(0, 12), {})
    cursor.flush(producer)
    assert 0 < cursor.rows_sent < 12
    producer.close()


def test_a_failure_after_a_refusal_sends_no_row_of_the_refused_chunk() -> None:
    connector, cursor = RecordingConnector(refusals=[True]), cursor_of()
    cursor.append(rows(0, 2), {})
    cursor.finish()
    assert not cursor.flush(connector)
    cursor.fail(ChunkFlag.ERROR, ERROR)
    assert cursor.flush(connector)
    check_protocol(connector, 0, ChunkFlag.ERROR)


def test_a_failure_after_the_end_changes_nothing() -> None:
    connector, cursor = RecordingConnector(), cursor_of()
    cursor.append(rows(0, 1), {})
    cursor.finish()
    cursor.flush(connector)
    cursor.fail(ChunkFlag.ERROR, ERROR)
    assert cursor.flush(connector)
    check_protocol(connector, 1, ChunkFlag.END)


def test_read_only_arrays_are_copied_and_others_are_not() -> None:
    memory = bytearray(np.arange(3, dtype=np.int64).tobytes())
    borrowed = np.frombuffer(memory, np.int64)
    borrowed.flags.writeable = False
    connector, cursor = RecordingConnector(), cursor_of()
    cursor.append({"id": borrowed}, {"doc": borrowed})
    memory[:] = bytes(len(memory))
    cursor.finish()
    cursor.flush(connector)
    assert connector.chunks[0].arrays["id"].tolist() == connector.chunks[0].arrays["doc"].tolist() == [0, 1, 2]


def test_rows_of_no_bytes_are_refused_as_they_would_take_no_credit() -> None:
    cursor = cursor_of()
    with pytest.raises(StageError, match="thinker->talker of req-1: 3 rows of no bytes"):
        cursor.append({"pair": np.empty((3, 0), np.float32)}, {})
    cursor.append({"pair": np.empty((0, 2), np.float32)}, {})
    cursor.append(rows(0, 1), {})
    connector = RecordingConnector()
    assert cursor.flush(connector)
    assert [sent.header.rows for sent in connector.chunks] == [1]


def test_a_row_larger_than_a_chunk_is_refused_when_it_is_appended() -> None:
    cursor = cursor_of(max_chunk_bytes=15)
    with pytest.raises(StageError, match=r"thinker->talker of req-1: one row of 16 bytes .* raise connector.arena_mib"):
        cursor.append(rows(0, 1), {})
    assert cursor.rows_produced == 0


@pytest.mark.parametrize("rows_first", [True, False])
def test_a_row_and_arrays_that_do_not_fit_together_are_refused_whichever_comes_first(rows_first: bool) -> None:
    cursor = cursor_of(max_chunk_bytes=20)
    document = {"doc": np.zeros(5, np.uint8)}
    cursor.append(rows(0, 1) if rows_first else {}, {} if rows_first else document)
    with pytest.raises(StageError, match="16 bytes and 5 bytes beside it exceed the largest chunk"):
        cursor.append({} if rows_first else rows(0, 1), document if rows_first else {})


def test_rows_arrive_at_a_real_connector_as_credit_comes_back() -> None:
    producer = InprocConnector("cursor-producer", arena_bytes=1024)
    consumer = InprocConnector("ipc://talker", arena_bytes=1024)
    producer.startup()
    consumer.startup()
    cursor = cursor_of(ChunkPlan(1, 1), producer.max_chunk_bytes)
    cursor.append(rows(0, 200), {})
    cursor.finish()
    arrived: list[int] = []
    assert not cursor.flush(producer), "200 rows are more than the credit"
    while not cursor.is_closed or producer.num_held("req-1"):
        while (chunk := consumer.get()) is not None:
            arrived += chunk.arrays["id"].tolist() if chunk.header.rows else []
            consumer.release(chunk)
        producer.get()
        cursor.flush(producer)
    assert arrived == list(range(200))
    producer.close()
    consumer.close()


def test_bfloat16_rows_which_numpy_holds_as_uint16_travel_as_bfloat16() -> None:
    connector = InprocConnector("ipc://talker", arena_bytes=1024)
    connector.startup()
    bits = np.arange(6, dtype=np.uint16).reshape(2, 3)
    cursor = cursor_of(EAGER, connector.max_chunk_bytes)
    cursor.append({"hidden": bits}, {"marker": bits[:1]})
    assert cursor.flush(connector)
    chunk = connector.get()
    assert chunk is not None
    assert {tensor.dtype for tensor in chunk.header.form.tensors} == {"bfloat16"}
    assert np.array_equal(chunk.arrays["hidden"], bits) and np.array_equal(chunk.arrays["marker"], bits[:1])
    connector.release(chunk)
    connector.close()
