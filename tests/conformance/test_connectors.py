"""What every connector must do. A new kind joins by its name in KINDS."""

import select
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from antiphon.config.pipeline import DTYPES, ChunkPlan
from antiphon.connector.base import Chunk, Connector
from antiphon.connector.cursor import EdgeCursor, EdgeTarget
from antiphon.connector.layout import Arrays
from antiphon.connector.registry import KINDS, make_connector
from antiphon.errors import ConfigError, StageError
from antiphon.messages.error_info import to_info
from antiphon.messages.interstage import ChunkFlag, ChunkForm, ChunkHeader, TensorSpec
from antiphon.transport.address import RunDirectory

DEADLINE_S = 20.0
ARENA_BYTES = 1024 * 1024
Make = Callable[..., Connector]

_STARTED: list[Connector] = []


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    directory = RunDirectory.create()
    made: list[Connector] = []

    def start(name: str, arena_bytes: int = ARENA_BYTES, num_requests: int = 1) -> Connector:
        connector = make_connector(request.param, directory.address(name), arena_bytes, num_requests=num_requests)
        connector.startup()
        made.append(connector)
        _STARTED.append(connector)
        return connector

    yield start
    _STARTED.clear()
    for connector in made:
        connector.close()
    directory.remove()


def header_of(arrays: Arrays, *, seq: int = 0, request_id: str = "req-1", flags: int = 0) -> ChunkHeader:
    """Of a chunk that carries `arrays` of any shape, as arrays of the request as a whole."""
    tensors = tuple(TensorSpec(key, str(array.dtype), array.shape, False) for key, array in arrays.items())
    return ChunkHeader(ChunkForm(request_id, 0, "thinker->talker", "thinker/0", tensors), seq, flags=flags)


def flush_all() -> None:
    """As every host does before it waits."""
    for connector in _STARTED:
        connector.flush()


def put(source: Connector, target: Connector, arrays: Arrays, *, seq: int = 0, request_id: str = "req-1") -> bool:
    return source.put(target.address, header_of(arrays, seq=seq, request_id=request_id), (), arrays)


def receive(connector: Connector) -> Chunk:
    """The next chunk; waits on the descriptor, as a host loop does."""
    deadline = time.monotonic() + DEADLINE_S
    while (chunk := connector.get()) is None:
        assert time.monotonic() < deadline, "no chunk arrived"
        flush_all()
        select.select([connector.fileno()], [], [], 0.2)
    return chunk


def settle(producer: Connector, num_leases: int = 0) -> None:
    """Let `producer` take in credit until it has `num_leases` leases."""
    deadline = time.monotonic() + DEADLINE_S
    while producer.statistics().num_leases != num_leases:
        assert time.monotonic() < deadline, f"{producer.statistics().num_leases} leases are held"
        flush_all()
        assert producer.get() is None
        select.select([producer.fileno()], [], [], 0.2)


def rows(num_bytes: int, fill: int = 1) -> Arrays:
    return {"hidden": np.full(num_bytes, fill, np.uint8)}


@pytest.mark.parametrize("num_rows", [1, 3, 3000])
def test_every_dtype_arrives_bit_for_bit(make: Make, num_rows: int) -> None:
    producer, consumer = make("a"), make("b")
    random = np.random.default_rng(7)
    sent, tensors = {}, []
    for dtype in DTYPES:
        array = random.integers(0, 2, (num_rows, 3)).astype("uint16" if dtype == "bfloat16" else dtype)
        if dtype != "bool":
            array.view(np.uint8)[...] = random.integers(0, 256, array.view(np.uint8).shape, np.uint8)
        sent[dtype] = array
        tensors.append(TensorSpec(dtype, dtype, array.shape[1:], True))
    header = ChunkHeader(ChunkForm("req-1", 2, "e", "p/0", tuple(tensors)), 9, first_row=4, rows=num_rows, flags=1)
    assert producer.put(consumer.address, header, [sent], {})
    chunk = receive(consumer)
    assert chunk.header == header
    assert list(chunk.arrays) == list(DTYPES)
    for dtype, array in sent.items():
        assert chunk.arrays[dtype].dtype == array.dtype
        assert chunk.arrays[dtype].shape == array.shape
        assert chunk.arrays[dtype].tobytes() == array.tobytes()


@pytest.mark.parametrize("num_rows", [2, 4000])
def test_non_contiguous_and_scalar_arrays_arrive_in_c_order(make: Make, num_rows: int) -> None:
    producer, consumer = make("a"), make("b")
    base = np.arange(num_rows * 4 * 2, dtype=np.int32).reshape(num_rows, 8)
    arrays = {"every_other": base[::2, ::-2], "turned": base.T, "scalar": np.array(2.5, np.float32)}
    expected = {key: array.copy() for key, array in arrays.items()}
    assert put(producer, consumer, arrays)
    base[...] = -1  # buffers may be reused after put
    received = receive(consumer).arrays
    assert received["scalar"].shape == ()
    for key, array in expected.items():
        np.testing.assert_array_equal(received[key], array)
        assert received[key].flags.c_contiguous


@pytest.mark.parametrize("num_bytes", [1, 1024, 1025, 16 * 1024, ARENA_BYTES // 4])
def test_arrays_are_read_only_at_every_size(make: Make, num_bytes: int) -> None:
    producer, consumer = make("a"), make("b")
    assert put(producer, consumer, rows(num_bytes, fill=5))
    array = receive(consumer).arrays["hidden"]
    assert array.size == num_bytes
    assert (array == 5).all()
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.setflags(write=True)


def test_chunks_of_every_size_keep_their_order(make: Make) -> None:
    producer, consumer = make("a"), make("b")
    sizes = [0, 20_000, 1, 16_384, 0, 70_000, 5, 100_000, 0]
    for seq, size in enumerate(sizes):
        assert put(producer, consumer, rows(size, fill=seq), seq=seq)
    for seq, size in enumerate(sizes):
        chunk = receive(consumer)
        assert chunk.header.seq == seq
        np.testing.assert_array_equal(chunk.arrays["hidden"], np.full(size, seq, np.uint8))
        consumer.release(chunk)
    consumer.flush()
    settle(producer)


@pytest.mark.parametrize("size", [1024, 100 * 1024])
def test_a_full_arena_refuses_and_resumes_after_a_release(make: Make, size: int) -> None:
    producer, consumer = make("a"), make("b")
    num_put = 0
    while put(producer, consumer, rows(size, fill=num_put % 256), seq=num_put):
        num_put += 1
    assert num_put == ARENA_BYTES // size
    statistics = producer.statistics()
    assert (statistics.num_chunks_put, statistics.num_refused) == (num_put, 1)
    assert statistics.arena_used_bytes == num_put * size <= statistics.arena_bytes == ARENA_BYTES
    first = receive(consumer)
    assert not put(producer, consumer, rows(size))
    consumer.release(first)
    consumer.flush()
    settle(producer, num_put - 1)
    assert put(producer, consumer, rows(size, fill=99), seq=num_put)
    for seq in range(1, num_put + 1):
        chunk = receive(consumer)
        assert chunk.header.seq == seq
        assert (chunk.arrays["hidden"] == (99 if seq == num_put else seq % 256)).all()


def test_requests_whose_consumer_stands_still_leave_room_for_one_whose_consumer_goes_on(make: Make) -> None:
    producer, still, going = make("a", num_requests=16), make("b"), make("c")
    for number in range(15):
        for size in (200_000, 30_000):
            while put(producer, still, rows(size), request_id=f"stuck-{number}"):
                pass
    assert producer.statistics().num_refused == 30
    for seq in range(30):
        assert put(producer, going, rows(30_000, fill=seq), seq=seq, request_id="goes-on")
        chunk = receive(going)
        assert (chunk.arrays["hidden"] == seq).all()
        going.release(chunk)
        going.flush()
        while producer.num_held("goes-on"):
            assert producer.get() is None


@pytest.mark.parametrize("flag", [ChunkFlag.END, ChunkFlag.ERROR, ChunkFlag.ABORT])
def test_a_terminal_marker_goes_through_a_full_arena(make: Make, flag: ChunkFlag) -> None:
    producer, consumer = make("a"), make("b")
    while put(producer, consumer, rows(200_000)):
        pass
    while put(producer, consumer, rows(64)):
        pass
    assert producer.put(consumer.address, header_of({}, seq=77, flags=int(flag)), (), {})
    while (chunk := receive(consumer)).header.seq != 77:
        pass
    assert chunk.header.flags == flag
    assert chunk.lease == 0
    consumer.release(chunk)


def test_releases_out_of_order_across_requests_free_their_own_chunks(make: Make) -> None:
    producer, consumer = make("a"), make("b")
    for seq in range(6):
        assert put(producer, consumer, rows(150_000, fill=seq), seq=seq, request_id=f"req-{seq % 3}")
    chunks = [receive(consumer) for _ in range(6)]
    for index in (4, 1):
        consumer.release(chunks[index])
    consumer.flush()
    settle(producer, 4)
    assert [producer.num_held(f"req-{n}") for n in range(3)] == [2, 0, 2]
    for seq in (6, 7):
        assert put(producer, consumer, rows(150_000, fill=seq), seq=seq)
    chunks += [receive(consumer) for _ in range(2)]
    for seq in (0, 2, 3, 5, 6, 7):
        assert (chunks[seq].arrays["hidden"] == seq).all(), "a held chunk was overwritten"


def test_a_chunk_of_max_chunk_bytes_passes_and_a_larger_one_fails_only_itself(make: Make) -> None:
    producer, consumer = make("a"), make("b")
    largest = np.random.default_rng(1).integers(0, 256, producer.max_chunk_bytes, np.uint8)
    assert put(producer, consumer, {"hidden": largest})
    np.testing.assert_array_equal(receive(consumer).arrays["hidden"], largest)
    with pytest.raises(StageError, match=r"chunk 3 of req-1 on thinker->talker .*raise connector.arena_mib"):
        put(producer, consumer, rows(producer.max_chunk_bytes + 1), seq=3)
    assert producer.num_held("req-1") == 1
    assert put(producer, consumer, rows(5))


def test_thousands_of_tiny_chunks_arrive_in_order_through_a_small_arena(make: Make) -> None:
    producer, consumer = make("a", 64 * 200), make("b", 64 * 200)
    num_chunks, num_put, num_got = 5000, 0, 0
    deadline = time.monotonic() + 60
    while num_got < num_chunks:
        assert time.monotonic() < deadline
        while num_put < num_chunks and put(producer, consumer, {"id": np.array([num_put], np.int64)}, seq=num_put):
            num_put += 1
        producer.flush()
        while (chunk := consumer.get()) is not None:
            assert chunk.header.seq == num_got
            assert chunk.arrays["id"][0] == num_got
            consumer.release(chunk)
            num_got += 1
        consumer.flush()
        assert producer.get() is None
    settle(producer)
    statistics = producer.statistics()
    assert statistics.num_chunks_put == num_chunks
    assert statistics.num_bytes_put == num_chunks * 8
    assert statistics.arena_high_water_bytes == 64 * 200
    assert consumer.statistics().num_bytes_received == num_chunks * 8
    assert statistics.arena_used_bytes == 0


def test_a_payload_of_many_chunks_passes_through_an_arena_that_holds_a_part_of_it(make: Make) -> None:
    """16 MiB in rows of 1,000 bytes through 1 MiB: split by the producer's cursor, joined again, none torn."""
    producer, consumer = make("a"), make("b")
    sent = np.random.default_rng(5).integers(0, 256, (16_000, 1_000), np.uint8)
    plan = ChunkPlan(None, None)
    cursor = EdgeCursor(EdgeTarget("req-1", 0, "e", "p/0", consumer.address, plan), producer.max_chunk_bytes)
    cursor.append({"hidden": sent}, {})
    cursor.finish()
    pieces: list[np.ndarray] = []
    is_ended = False
    deadline = time.monotonic() + 60
    while not is_ended:
        assert time.monotonic() < deadline
        cursor.flush(producer)
        producer.flush()
        while (chunk := consumer.get()) is not None:
            assert chunk.header.seq == len(pieces)
            pieces.append(chunk.arrays["hidden"].copy())
            is_ended = chunk.header.is_terminal
            consumer.release(chunk)
        consumer.flush()
        assert producer.get() is None
    assert cursor.is_closed
    assert np.array_equal(np.concatenate(pieces), sent)
    assert len(pieces) == -(-16_000 // (producer.max_chunk_bytes // 1_000))
    assert producer.statistics().arena_high_water_bytes <= ARENA_BYTES
    settle(producer)


@pytest.mark.parametrize("size", [100, 50_000])
def test_terminal_markers_of_many_requests_pass_a_full_arena_in_order_and_take_none_of_it(
    make: Make, size: int
) -> None:
    producer, consumer = make("a"), make("b")
    num_put = 0
    while put(producer, consumer, rows(size), seq=num_put):
        num_put += 1
    used_bytes = producer.statistics().arena_used_bytes
    for number in range(500):
        assert producer.put(consumer.address, header_of({}, request_id=f"end-{number}", flags=1), (), {})
    assert producer.statistics().arena_used_bytes == used_bytes
    arrived = [receive(consumer).header for _ in range(num_put + 500)]
    assert [header.seq for header in arrived[:num_put]] == list(range(num_put))
    assert [header.form.request_id for header in arrived[num_put:]] == [f"end-{number}" for number in range(500)]


def test_many_failures_at_once_arrive_with_the_longest_messages_that_an_error_has(make: Make) -> None:
    producer, consumer = make("a"), make("b")
    error = to_info(StageError("\N{LOUDLY CRYING FACE}" * 3_000))
    for number in range(300):
        failed = ChunkHeader(header_of({}, request_id=f"req-{number}").form, 0, flags=int(ChunkFlag.ERROR), error=error)
        assert producer.put(consumer.address, failed, (), {})
    arrived = [receive(consumer).header for _ in range(300)]
    assert [(header.form.request_id, header.error) for header in arrived] == [(f"req-{n}", error) for n in range(300)]


@pytest.mark.parametrize(("size", "num_leases"), [(1, 0), (1024, 0), (1025, 1), (50_000, 1)])
def test_a_requests_last_chunk_takes_credit_only_if_it_is_too_large_for_the_message(
    make: Make, size: int, num_leases: int
) -> None:
    producer, consumer = make("a"), make("b")
    arrays = rows(size, fill=3)
    assert producer.put(consumer.address, header_of(arrays, flags=int(ChunkFlag.END)), (), arrays)
    assert (producer.num_held("req-1"), producer.statistics().num_leases) == (num_leases, num_leases)
    chunk = receive(consumer)
    assert (chunk.arrays["hidden"] == 3).all()
    consumer.release(chunk)
    settle(producer)


def test_a_small_last_chunk_with_rows_goes_through_a_full_arena(make: Make) -> None:
    producer, consumer = make("a"), make("b")
    while put(producer, consumer, rows(200_000)) or put(producer, consumer, rows(64)):
        pass
    last = rows(64, fill=9)
    assert producer.put(consumer.address, header_of(last, seq=77, flags=int(ChunkFlag.END)), (), last)
    while (chunk := receive(consumer)).header.seq != 77:
        pass
    assert (chunk.arrays["hidden"] == 9).all()


def test_num_held_counts_a_requests_chunks_until_they_are_released(make: Make) -> None:
    producer, consumer = make("a"), make("b")
    for size in (10, 50_000, 0):
        assert put(producer, consumer, rows(size), request_id="req-9")
    assert put(producer, consumer, rows(10), request_id="req-8")
    assert producer.num_held("req-9") == 2
    for _ in range(3):
        consumer.release(receive(consumer))
    consumer.flush()
    settle(producer, 1)
    assert (producer.num_held("req-9"), producer.num_held("req-8"), producer.num_held("never")) == (0, 1, 0)


def test_a_second_release_of_a_chunk_frees_nothing_else(make: Make) -> None:
    producer, consumer = make("a"), make("b")
    assert put(producer, consumer, rows(20_000, fill=1))
    chunk = receive(consumer)
    consumer.release(chunk)
    consumer.flush()
    settle(producer)
    assert put(producer, consumer, rows(20_000, fill=2))
    held = receive(consumer)
    consumer.release(chunk)
    consumer.flush()
    assert put(consumer, producer, {}, seq=5)  # behind the stray credit, so the producer has taken that in
    assert receive(producer).header.seq == 5
    assert producer.num_held("req-1") == 1
    assert (held.arrays["hidden"] == 2).all()


def test_forget_peer_reclaims_what_that_peer_held_and_nothing_else(make: Make) -> None:
    producer, gone, alive = make("a"), make("b"), make("c")
    for consumer in (gone, alive):
        assert put(producer, consumer, rows(200_000), request_id="req-2")
        assert put(producer, consumer, rows(100), request_id="req-2")
    receive(gone)
    gone.close()
    assert producer.num_held("req-2") == 4
    producer.forget_peer(gone.address)
    assert producer.num_held("req-2") == 2
    while put(producer, alive, rows(200_000)):
        pass
    assert producer.statistics().num_leases == 2 + 4
    assert (receive(alive).arrays["hidden"] == 1).all()


@pytest.mark.parametrize("size", [100, 50_000])
def test_a_late_release_after_forget_peer_frees_nothing_of_what_was_put_since(make: Make, size: int) -> None:
    """The producer was told that its consumer has died, and it lives: what it had is not taken back twice."""
    producer, consumer, other = make("a"), make("b"), make("c")
    assert put(producer, consumer, rows(size, fill=1), seq=0)
    late = receive(consumer)
    producer.forget_peer(consumer.address)
    assert producer.statistics().num_leases == 0
    assert put(producer, other, rows(size, fill=2), seq=1)
    held = receive(other)
    consumer.release(late)
    consumer.flush()
    assert put(consumer, producer, {}, seq=5)  # behind the late credit, so the producer has taken that in
    assert receive(producer).header.seq == 5
    assert producer.num_held("req-1") == 1
    assert (held.arrays["hidden"] == 2).all()
    other.release(held)
    other.flush()
    settle(producer)


@pytest.mark.parametrize("size", [0, 100, 50_000])
def test_what_is_put_to_a_peer_that_was_forgotten_is_lost_and_takes_no_credit(make: Make, size: int) -> None:
    producer, consumer = make("a"), make("b")
    producer.forget_peer(consumer.address)
    for _ in range(100):
        assert put(producer, consumer, rows(size))
    assert (producer.statistics().num_leases, producer.statistics().arena_used_bytes) == (0, 0)
    assert consumer.get() is None


@pytest.mark.parametrize("size", [100, 50_000])
def test_an_unread_chunk_of_a_forgotten_producer_and_its_credit_harm_nobody(make: Make, size: int) -> None:
    """It was on its way when its producer died. An end without payload behind it is still heard."""
    producer, consumer = make("a"), make("b")
    assert put(producer, consumer, rows(size), seq=0)
    assert producer.put(consumer.address, header_of({}, seq=1, flags=int(ChunkFlag.END)), (), {})
    consumer.forget_peer(producer.address)
    chunk, end = receive(consumer), receive(consumer)
    assert (chunk.header.seq, end.header.seq, end.header.flags) == (0, 1, ChunkFlag.END)
    consumer.release(chunk)
    consumer.flush()
    assert put(consumer, producer, {}, seq=5)
    assert producer.get() is None
    assert producer.num_held("req-1") == 1, "nothing went back to it"


def test_closing_with_leases_on_both_sides_ends_without_an_error_and_frees_the_address(make: Make) -> None:
    first, second = make("a"), make("b")
    for source, target in ((first, second), (second, first)):
        for size in (100, 50_000):
            assert put(source, target, rows(size))
    held = [receive(second), receive(first)]
    first.close()
    second.close()
    assert [int(chunk.arrays["hidden"][0]) for chunk in held] == [1, 1]
    first, second = make("a"), make("b")
    assert put(first, second, rows(50_000, fill=6))
    assert (receive(second).arrays["hidden"] == 6).all()


def test_two_producers_to_one_consumer_keep_each_their_order_and_credit(make: Make) -> None:
    first, second, consumer = make("a"), make("b"), make("c")
    for seq in range(5):
        assert put(first, consumer, rows(30_000, fill=10 + seq), seq=seq, request_id="of-first")
        assert put(second, consumer, rows(30_000, fill=20 + seq), seq=seq, request_id="of-second")
    seen: dict[str, list[int]] = {"of-first": [], "of-second": []}
    for _ in range(10):
        chunk = receive(consumer)
        request_id = chunk.header.form.request_id
        base = 10 if request_id == "of-first" else 20
        assert (chunk.arrays["hidden"] == base + chunk.header.seq).all()
        seen[request_id].append(chunk.header.seq)
        if request_id == "of-first":
            consumer.release(chunk)
    assert seen == {"of-first": [0, 1, 2, 3, 4], "of-second": [0, 1, 2, 3, 4]}
    consumer.flush()
    settle(first)
    assert second.num_held("of-second") == 5


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_view_stays_readable_after_its_producer_closed(make: Make, size: int) -> None:
    producer, consumer = make("a"), make("b")
    assert put(producer, consumer, rows(size, fill=42))
    chunk = receive(consumer)
    producer.close()
    consumer.forget_peer(producer.address)
    assert (chunk.arrays["hidden"] == 42).all()
    consumer.release(chunk)
    consumer.flush()


def test_the_descriptor_wakes_for_a_chunk_and_for_credit(make: Make) -> None:
    producer, consumer = make("a"), make("b")
    assert consumer.get() is None
    assert producer.get() is None
    assert put(producer, consumer, rows(30_000))
    producer.flush()
    assert select.select([consumer.fileno()], [], [], DEADLINE_S)[0]
    chunk = receive(consumer)
    assert consumer.get() is None
    assert producer.get() is None
    consumer.release(chunk)
    consumer.flush()
    assert select.select([producer.fileno()], [], [], DEADLINE_S)[0]
    settle(producer)


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        (TensorSpec("hidden", "float32", (8,), False), "declared as float32 .8,. and given as uint8 .8,."),
        (TensorSpec("hidden", "uint8", (9,), False), "given as uint8 .8,."),
        (TensorSpec("hidden", "object", (8,), False), "unknown dtype 'object'"),
        (TensorSpec("hidden", "uint8", (-8,), False), "impossible shape"),
        (TensorSpec("embed", "uint8", (8,), False), "embed is declared as uint8 .8,. and not given"),
    ],
)
def test_buffers_that_are_not_as_declared_fail_their_put_only(make: Make, declared: TensorSpec, problem: str) -> None:
    producer, consumer = make("a"), make("b")
    header = ChunkHeader(ChunkForm("req-1", 0, "e", "p/0", (declared,)), 0)
    with pytest.raises(StageError, match=problem):
        producer.put(consumer.address, header, (), rows(8))
    with pytest.raises(StageError, match="1 whole arrays are declared and 0 given"):
        producer.put(consumer.address, header_of(rows(8)), (), {})
    assert producer.statistics().num_leases == 0
    assert put(producer, consumer, rows(8), seq=1)
    assert receive(consumer).header.seq == 1


PIECES = [
    {"id": np.arange(3), "pair": np.zeros((3, 2), np.float32)},
    {"id": np.arange(3, 5), "pair": np.ones((2, 2), np.float32)},
]
PAIRS = (TensorSpec("id", "int64", (), True), TensorSpec("pair", "float32", (2,), True))


@pytest.mark.parametrize("num_rows", [1, 3, 4, 5])
def test_the_first_rows_of_several_pieces_arrive_as_one_array_of_each_key(make: Make, num_rows: int) -> None:
    producer, consumer = make("a"), make("b")
    form = ChunkForm("req-1", 0, "e", "p/0", (*PAIRS, TensorSpec("doc", "uint8", (9,), False)))
    whole = {"doc": np.arange(9, dtype=np.uint8)}
    assert producer.put(consumer.address, ChunkHeader(form, 0, rows=num_rows), PIECES, whole)
    arrays = receive(consumer).arrays
    assert arrays["id"].tolist() == list(range(num_rows))
    assert arrays["pair"].tolist() == [[float(row >= 3)] * 2 for row in range(num_rows)]
    assert arrays["doc"].tolist() == list(range(9))


@pytest.mark.parametrize(
    ("rows_given", "problem"),
    [
        (PIECES, "6 rows are declared and 5 given"),
        ([{"id": np.arange(6)}], "pair is declared as float32 .2,. and not given"),
        ([{"id": np.arange(6), "pair": np.zeros((5, 2), np.float32)}], "pair has 5 rows where others have 6"),
        (
            [
                {"id": np.arange(2), "pair": np.zeros((1, 2), np.float32)},
                {"id": np.arange(4), "pair": np.zeros((5, 2), np.float32)},
            ],
            "pair has 1 rows where others have 2",
        ),
        ([{"id": np.arange(7), "pair": np.zeros((8, 2), np.float32)}], "pair has 8 rows where others have 7"),
        ([{"id": np.arange(6), "pair": np.zeros((6, 3), np.float32)}], "given as float32 .6, 3."),
        ([*PIECES, {"id": np.arange(1), "pair": np.zeros((1, 3), np.float32)}], "given as float32 .1, 3."),
        ([{"id": np.arange(6), "pair": np.zeros((6, 2))}], "given as float64 .6, 2."),
        ([{"id": np.arange(6), "pair": np.zeros((6, 2), np.float32), "x": np.zeros(6)}], "2 arrays are declared and 3"),
    ],
)
def test_rows_that_are_not_as_declared_fail_their_put_only(make: Make, rows_given: list[Arrays], problem: str) -> None:
    producer, consumer = make("a"), make("b")
    header = ChunkHeader(ChunkForm("req-1", 0, "e", "p/0", PAIRS), 0, rows=6)
    with pytest.raises(StageError, match=f"chunk 0 of req-1 on e from p/0: .*{problem}"):
        producer.put(consumer.address, header, rows_given, {})
    assert producer.statistics().num_leases == 0
    assert put(producer, consumer, rows(8), seq=1)
    assert receive(consumer).header.seq == 1


@pytest.mark.parametrize("size", [8, 64 * 1024])
def test_a_put_that_fails_takes_nothing_of_the_arena_and_disturbs_no_other_chunk(make: Make, size: int) -> None:
    producer, consumer = make("a"), make("b")
    declared = TensorSpec("hidden", "float32", (size // 4,), True)
    header = ChunkHeader(ChunkForm("req-1", 0, "e", "p/0", (declared,)), 0, rows=2)
    wrong = [{"hidden": np.zeros((1, size // 4), np.float32)}, {"hidden": np.zeros((1, size // 4), np.float64)}]
    assert put(producer, consumer, rows(size), seq=0)
    for _ in range(40):  # of 128 KiB each they would fill the arena five times
        with pytest.raises(StageError, match="given as float64"):
            producer.put(consumer.address, header, wrong, {})
    assert producer.statistics().num_leases == 1
    assert put(producer, consumer, rows(size), seq=1)
    for seq in range(2):
        chunk = receive(consumer)
        assert chunk.header.seq == seq
        assert chunk.arrays["hidden"].tolist() == rows(size)["hidden"].tolist()


def test_what_a_closed_connector_had_is_not_seen_by_its_successor(make: Make) -> None:
    producer, consumer = make("a"), make("b")
    assert put(producer, consumer, rows(20_000))
    chunk = receive(consumer)
    producer.close()
    successor = make("a")
    assert put(successor, consumer, rows(20_000, fill=3), seq=8)
    held = receive(consumer)
    assert (held.arrays["hidden"] == 3).all()
    consumer.release(chunk)
    consumer.flush()
    assert put(consumer, successor, {}, seq=5)
    assert receive(successor).header.seq == 5
    assert successor.num_held("req-1") == 1, "a credit for the old process freed a chunk of the new one"


def test_an_unknown_kind_is_named_with_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match="'rdma' is unknown; use one of inproc, shm"):
        make_connector("rdma", "nowhere", 1024)
