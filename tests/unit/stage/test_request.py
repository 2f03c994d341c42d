"""EdgeInput against a plain list of rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.connector.base import Chunk
from antiphon.messages.interstage import ChunkFlag, ChunkForm, ChunkHeader, TensorSpec
from antiphon.stage import request as module
from antiphon.stage.request import EdgeInput

TAKE_ALL = -1


def chunk_of(seq: int, first_row: int, rows: int, flags: ChunkFlag = ChunkFlag.NONE) -> Chunk:
    """Row i carries i in `number` and [i, -i] in `pair`."""
    numbers = np.arange(first_row, first_row + rows, dtype=np.int64)
    arrays = {"number": numbers, "pair": np.stack([numbers, -numbers], axis=1)} if rows else {}
    tensors = tuple(TensorSpec(key, "int64", array.shape[1:], True) for key, array in arrays.items())
    form = ChunkForm("req-1", 0, "a->b", "a/0", tensors)
    return Chunk(ChunkHeader(form, seq, first_row, rows, int(flags)), arrays, lease=seq + 1)


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 5)),
            st.tuples(st.just("take"), st.integers(TAKE_ALL, 7)),
            st.tuples(st.just("end_step"), st.just(0)),
        ),
        max_size=30,
    )
)
def test_take_gives_each_row_once_in_order_and_each_chunk_is_spent_once(steps: list[tuple[str, int]]) -> None:
    finished: list[Chunk] = []
    edge = EdgeInput(finished)
    waiting: list[int] = []
    added: list[Chunk] = []
    spent: list[Chunk] = []
    next_row = 0
    for step, number in steps:
        if step == "add":
            added.append(chunk_of(len(added), next_row, number))
            edge.add(added[-1])
            waiting += range(next_row, next_row + number)
            next_row += number
        elif step == "take":
            count = len(waiting) if number == TAKE_ALL else min(number, len(waiting))
            taken = edge.take(None if number == TAKE_ALL else number)
            expected, waiting = waiting[:count], waiting[count:]
            assert taken.keys() == ({"number", "pair"} if count else set())
            if count:
                assert taken["number"].tolist() == expected
                assert taken["pair"].tolist() == [[row, -row] for row in expected]
        else:
            spent += finished
            finished.clear()
        assert edge.num_rows == len(waiting)
        assert edge.num_rows_taken == next_row - len(waiting)
    for chunk in spent:
        rows = range(chunk.header.first_row, chunk.header.first_row + chunk.header.rows)
        assert not set(rows) & set(waiting)
    last = [*spent, *finished, *edge.drop()]
    assert sorted(chunk.lease for chunk in last) == [chunk.lease for chunk in added]
    assert edge.drop() == []
    assert edge.num_rows == 0


def large_chunk_of(seq: int, rows: int) -> Chunk:
    """Each row has 24 KiB and its chunk's number in every byte."""
    array = np.full((rows, 24 * 1024), seq, np.uint8)
    form = ChunkForm("req-1", 0, "a->b", "a/0", (TensorSpec("hidden", "uint8", array.shape[1:], True),))
    return Chunk(ChunkHeader(form, seq, seq, rows), {"hidden": array}, lease=seq + 1)


def test_a_step_with_a_limit_gets_fewer_large_rows_rather_than_a_copy_of_them() -> None:
    finished: list[Chunk] = []
    edge = EdgeInput(finished)
    chunks = [large_chunk_of(0, 1), large_chunk_of(1, 1), large_chunk_of(2, 3)]
    for chunk in chunks:
        edge.add(chunk)
    assert edge.take(100)["hidden"][:, 0].tolist() == [0, 1]  # 48 KiB, copied
    assert np.shares_memory(edge.take(100)["hidden"], chunks[2].arrays["hidden"])
    assert edge.num_rows == 0
    assert finished == chunks


def test_a_step_without_a_limit_gets_all_rows_however_large() -> None:
    edge = EdgeInput()
    for seq in range(3):
        edge.add(large_chunk_of(seq, 2))
    assert edge.take()["hidden"][:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert edge.num_rows == 0


@pytest.mark.parametrize("max_rows", [None, 1000])
def test_many_small_chunks_are_looked_at_once_each(max_rows: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    num_bytes, num_looks = module._num_bytes, 0

    def counted(arrays: dict[str, np.ndarray]) -> int:
        nonlocal num_looks
        num_looks += 1
        return num_bytes(arrays)

    monkeypatch.setattr(module, "_num_bytes", counted)
    edge = EdgeInput()
    for seq in range(500):
        edge.add(chunk_of(seq, seq, 1))
    assert edge.take(max_rows)["number"].tolist() == list(range(500))
    assert num_looks <= 500


def test_an_edge_is_exhausted_when_it_has_ended_and_its_last_row_is_taken() -> None:
    edge = EdgeInput()
    edge.add(chunk_of(0, 0, 2, ChunkFlag.END))
    assert not edge.exhausted
    edge.ended = True
    edge.take(1)
    assert not edge.exhausted
    edge.take(1)
    assert edge.exhausted


def test_a_whole_array_outlives_the_chunk_that_brought_it() -> None:
    finished: list[Chunk] = []
    edge = EdgeInput(finished)
    document = np.arange(4, dtype=np.uint8)
    tensors = (TensorSpec("document", "uint8", (4,), False),)
    edge.add(Chunk(ChunkHeader(ChunkForm("req-1", 0, "a->b", "a/0", tensors), 0), {"document": document}, lease=5))
    (spent,) = finished
    document[...] = 0  # its producer uses the memory again
    assert spent.lease == 5
    assert edge.whole["document"].tolist() == [0, 1, 2, 3]
    assert edge.num_rows == 0
