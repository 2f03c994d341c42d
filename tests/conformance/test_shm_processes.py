"""ShmConnector between real processes, and against peers that send nonsense."""

import dataclasses
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.connector.base import Chunk
from antiphon.connector.memfd import PREFIX_BYTES
from antiphon.connector.parcel import Parcel, SentChunk
from antiphon.connector.shm import ShmConnector
from antiphon.errors import ReplicaDiedError
from antiphon.messages.error_info import to_error
from antiphon.messages.interstage import ChunkFlag, ChunkForm, ChunkHeader, TensorSpec
from antiphon.transport.address import RunDirectory
from antiphon.transport.channel import Outlet

DEADLINE_S = 30.0
MIB = 1024 * 1024
SPEC = TensorSpec("hidden", "uint8", (40_000,), False)
FORM = ChunkForm("req-1", 0, "thinker->talker", "thinker/0", (SPEC,))

ECHO = """
import select, sys
import numpy as np
from antiphon.connector.shm import ShmConnector
own, producer, holds = sys.argv[1], sys.argv[2], int(sys.argv[3])
connector = ShmConnector(own, arena_bytes=64 << 20)
connector.startup()
print("up", flush=True)
held, ended = [], False
while not ended or connector.statistics().num_leases:
    while (chunk := connector.get()) is not None:
        if len(held) < holds:
            held.append(chunk)
            print("held", flush=True)
            continue
        answer = {key: array + 1 for key, array in chunk.arrays.items()}
        assert connector.put(producer, chunk.header, (), answer)
        connector.release(chunk)
        ended = ended or chunk.header.is_terminal
    connector.flush()
    select.select([connector.fileno()], [], [], 0.2)
connector.close()
"""


@pytest.fixture
def directory() -> Iterator[RunDirectory]:
    made = RunDirectory.create()
    yield made
    made.remove()


@pytest.fixture
def producer(directory: RunDirectory) -> Iterator[ShmConnector]:
    connector = ShmConnector(directory.address("producer"), arena_bytes=8 * MIB)
    connector.startup()
    yield connector
    connector.close()


@pytest.fixture
def consumer(directory: RunDirectory) -> Iterator[ShmConnector]:
    connector = ShmConnector(directory.address("consumer"), arena_bytes=MIB)
    connector.startup()
    yield connector
    connector.close()


@contextmanager
def echo_process(
    directory: RunDirectory, producer: ShmConnector, *, holds: int = 0, name: str = "echo"
) -> Iterator[tuple[str, "Child"]]:
    address = directory.address(name)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", ECHO, address, producer.address, str(holds)]
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        yield address, child
    finally:
        child.kill()
        child.wait(DEADLINE_S)


Child = subprocess.Popen[str]


def receive(connector: ShmConnector) -> Chunk:
    deadline = time.monotonic() + DEADLINE_S
    while (chunk := connector.get()) is None:
        assert time.monotonic() < deadline, "no chunk arrived"
        select.select([connector.fileno()], [], [], 0.2)
    return chunk


def settle(producer: ShmConnector) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while producer.statistics().num_leases:
        assert time.monotonic() < deadline, "leases are still held"
        assert producer.get() is None
        select.select([producer.fileno()], [], [], 0.2)


def header(array: np.ndarray, seq: int, flags: int = 0) -> ChunkHeader:
    spec = TensorSpec("hidden", str(array.dtype), array.shape, False)
    return ChunkHeader(ChunkForm("req-1", 0, "thinker->talker", "thinker/0", (spec,)), seq, flags=flags)


def test_a_second_process_reads_answers_and_gives_all_credit_back(
    directory: RunDirectory, producer: ShmConnector
) -> None:
    shm_before = sorted(os.listdir("/dev/shm"))
    random = np.random.default_rng(3)
    with echo_process(directory, producer) as (address, child):
        shapes = [(3, 5), (0, 5), (9000, 5), (1, 1), (100_000, 5), (40, 5)]
        arrays = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
        for seq, array in enumerate(arrays):
            flags = ChunkFlag.END if seq == len(arrays) - 1 else ChunkFlag.NONE
            assert producer.put(address, header(array, seq, int(flags)), (), {"hidden": array})
            producer.flush()
        for seq, array in enumerate(arrays):
            chunk = receive(producer)
            assert chunk.header.seq == seq
            np.testing.assert_array_equal(chunk.arrays["hidden"], array + 1)
            producer.release(chunk)
        producer.flush()  # the child ends when its own leases are released
        settle(producer)
        assert child.wait(DEADLINE_S) == 0
    assert sorted(os.listdir("/dev/shm")) == shm_before


def test_a_killed_consumer_gives_everything_back_and_leaves_nothing(
    directory: RunDirectory, producer: ShmConnector
) -> None:
    shm_before = sorted(os.listdir("/dev/shm"))
    with echo_process(directory, producer, holds=6) as (address, child):
        for seq in range(6):
            array = np.full(2 * MIB if seq % 2 else 100, seq, np.uint8)
            assert producer.put(address, header(array, seq), (), {"hidden": array})
            producer.flush()
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in range(6)] == ["held\n"] * 6
        child.send_signal(signal.SIGKILL)
        child.wait(DEADLINE_S)
    assert producer.get() is None
    assert producer.num_held("req-1") == 6
    producer.forget_peer(address)
    assert producer.num_held("req-1") == 0
    assert producer.statistics().arena_used_bytes == 0
    with echo_process(directory, producer, name="next") as (address, _):
        array = np.zeros(2 * MIB, np.uint8)
        for seq in range(4):  # as much as the arena holds, so every byte came back
            assert producer.put(address, header(array, seq), (), {"hidden": array})
            producer.flush()
        assert (receive(producer).arrays["hidden"] == 1).all()
    assert sorted(os.listdir("/dev/shm")) == shm_before


def test_mapped_chunks_of_a_killed_producer_stay_readable(directory: RunDirectory, producer: ShmConnector) -> None:
    with echo_process(directory, producer) as (address, child):
        array = np.zeros(MIB, np.uint8)
        assert producer.put(address, header(array, 0), (), {"hidden": array})
        producer.flush()
        chunk = receive(producer)
        child.send_signal(signal.SIGKILL)
        child.wait(DEADLINE_S)
    assert (chunk.arrays["hidden"] == 1).all()
    producer.forget_peer(address)
    assert (chunk.arrays["hidden"] == 1).all()
    producer.release(chunk)


@pytest.mark.parametrize("is_reaped", [True, False])
def test_an_unread_chunk_of_a_killed_producer_says_that_its_process_has_ended(
    directory: RunDirectory, producer: ShmConnector, is_reaped: bool
) -> None:
    with echo_process(directory, producer) as (address, child):
        array = np.zeros(MIB, np.uint8)
        assert producer.put(address, header(array, 0), (), {"hidden": array})
        producer.flush()
        deadline = time.monotonic() + DEADLINE_S
        while not (arrived := producer._inlet.receive()):
            assert time.monotonic() < deadline, "no answer arrived"
        for frames in arrived:
            producer._take_in(frames)
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | (0 if is_reaped else os.WNOWAIT))
        chunk = receive(producer)
    assert (chunk.header.seq, chunk.header.flags, chunk.arrays) == (0, ChunkFlag.ERROR, {})
    assert chunk.header.error is not None
    assert isinstance(to_error(chunk.header.error), ReplicaDiedError)
    producer.release(chunk)
    producer.forget_peer(address)
    assert producer.statistics().arena_used_bytes == 0


class Forger:
    """Says to a consumer whatever it is told, with one true arena to point into."""

    def __init__(self, producer: ShmConnector, consumer: ShmConnector) -> None:
        self.outlet = Outlet()
        self.target = consumer.address
        producer.put(consumer.address, ChunkHeader(FORM, 3), (), {"hidden": np.full(SPEC.shape, 9, np.uint8)})
        producer.flush()
        self.genuine = self._last_parcel(consumer)

    def send(self, parcel: Parcel) -> None:
        self.outlet.send(self.target, parcel)

    def _last_parcel(self, consumer: ShmConnector) -> Parcel:
        chunk = receive(consumer)
        assert (chunk.arrays["hidden"] == 9).all()
        mapped = consumer._peer_arenas._opened[chunk.reply_address][0]
        sent = SentChunk(FORM.encoded, 3, 0, 0, 0, None, chunk.lease, False, PREFIX_BYTES)
        return Parcel(chunk.reply_address, mapped, [sent])


@pytest.fixture
def forger(producer: ShmConnector, consumer: ShmConnector) -> Iterator[Forger]:
    made = Forger(producer, consumer)
    yield made
    made.outlet.close()


def with_sent(parcel: Parcel, **fields: int | bytes) -> Parcel:
    return msgspec.structs.replace(parcel, chunks=[msgspec.structs.replace(parcel.chunks[0], **fields)])


def with_spec(parcel: Parcel, *specs: TensorSpec) -> Parcel:
    return with_sent(parcel, form=msgspec.structs.replace(FORM, tensors=specs).encoded)


def with_arena(parcel: Parcel, **fields: int | bytes) -> Parcel:
    return msgspec.structs.replace(parcel, arena=msgspec.structs.replace(parcel.arena, **fields))


ROWS = TensorSpec("h", "uint8", (1,), True)
CORRUPTIONS = {
    "an offset behind the end": (lambda p: with_sent(p, offset=8 * MIB), "outside the"),
    "an offset before the start": (lambda p: with_sent(p, offset=-64), "outside the"),
    "a shape over the end": (lambda p: with_spec(p, TensorSpec("h", "uint8", (9 * MIB,), False)), "outside the"),
    "rows over the end": (lambda p: with_sent(with_spec(p, ROWS), rows=9 * MIB), "outside the"),
    "a huge number of rows": (lambda p: with_sent(with_spec(p, ROWS), rows=2**63), "impossible number of rows"),
    "fewer than no rows": (lambda p: with_sent(with_spec(p, ROWS), rows=-1), "impossible number of rows"),
    "a huge row": (lambda p: with_spec(p, TensorSpec("h", "int64", (2**30, 0), True)), "impossible shape"),
    "a huge shape": (lambda p: with_spec(p, TensorSpec("h", "int64", (2**60, 2**60), False)), "impossible shape"),
    "huge and empty": (lambda p: with_spec(p, TensorSpec("h", "int64", (0, 2**60, 2**60), False)), "impossible shape"),
    "a negative shape": (lambda p: with_spec(p, TensorSpec("h", "int64", (-4, -4), False)), "impossible shape"),
    "too many axes": (lambda p: with_spec(p, TensorSpec("h", "uint8", (1,) * 70, False)), "impossible shape"),
    "an object dtype": (lambda p: with_spec(p, TensorSpec("h", "object", (4,), False)), "unknown dtype"),
    "one key twice": (lambda p: with_spec(p, SPEC, SPEC), "same key"),
    "no inline frame": (lambda p: with_sent(p, is_inline=True, offset=0), "outside the 0 of its buffer"),
    "another token": (lambda p: with_arena(p, token=b"x" * 16), "token differs"),
    "another size": (lambda p: with_arena(p, size_bytes=4096), "seal or size differs"),
    "no such process": (lambda p: with_arena(p, pid=2**22 + 5), "ended before its chunk was read"),
    "no such descriptor": (lambda p: with_arena(p, fd=10_000), "cannot map the arena"),
    "a credit address that is none": (lambda p: msgspec.structs.replace(p, sender="tcp//x"), "cannot go back"),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corrupted_descriptor_fails_its_chunk_only(name: str, forger: Forger, consumer: ShmConnector) -> None:
    corrupt, problem = CORRUPTIONS[name]
    kind = "ReplicaDiedError" if name == "no such process" else "StageError"
    forger.send(corrupt(forger.genuine))
    chunk = receive(consumer)
    form = chunk.header.form
    assert (form.request_id, chunk.header.seq, chunk.header.flags) == ("req-1", 3, ChunkFlag.ERROR)
    assert (chunk.arrays, form.tensors, chunk.header.rows) == ({}, (), 0)
    assert chunk.header.error is not None
    error = to_error(chunk.header.error)
    assert type(error).__name__ == kind
    assert problem in error.message
    consumer.release(chunk)
    consumer.flush()
    forger.send(forger.genuine)
    assert (receive(consumer).arrays["hidden"] == 9).all()
    assert consumer.statistics().num_chunks_failed == 1


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_a_recycled_descriptor_is_noticed(kind: str, forger: Forger, consumer: ShmConnector) -> None:
    ends = list(os.pipe()) if kind == "pipe" else [os.open(__file__, os.O_RDONLY)]
    try:
        forger.send(with_arena(forger.genuine, fd=ends[0], pid=os.getpid()))
        chunk = receive(consumer)
        assert chunk.header.error is not None
        assert "cannot map the arena" in chunk.header.error.message
    finally:
        for end in ends:
            os.close(end)


def test_a_memfd_that_could_be_truncated_is_refused(forger: Forger, consumer: ShmConnector) -> None:
    fd = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 100_000)
    os.pwrite(fd, forger.genuine.arena.token, 0)
    forger.send(with_arena(forger.genuine, fd=fd, size_bytes=100_000))
    chunk = receive(consumer)
    os.close(fd)
    assert chunk.header.error is not None
    assert "seal or size differs" in chunk.header.error.message


def test_the_credit_of_a_chunk_that_failed_goes_back_too(
    producer: ShmConnector, forger: Forger, consumer: ShmConnector
) -> None:
    assert producer.num_held("req-1") == 1
    forger.send(with_arena(forger.genuine, token=b""))
    consumer.release(receive(consumer))
    consumer.flush()
    settle(producer)


def test_what_waits_leaves_without_a_flush_once_there_is_much_of_it(
    producer: ShmConnector, consumer: ShmConnector
) -> None:
    array = np.zeros(8, np.uint8)
    for seq in range(1025):
        assert producer.put(consumer.address, header(array, seq), (), {"hidden": array})
    for chunk in [receive(consumer) for _ in range(1024)]:
        consumer.release(chunk)
    deadline = time.monotonic() + DEADLINE_S
    while producer.num_held("req-1") != 1:
        assert time.monotonic() < deadline
        assert producer.get() is None
    assert consumer.get() is None
    producer.flush()
    consumer.release(receive(consumer))
    consumer.flush()
    settle(producer)


def test_a_producer_that_was_forgotten_is_not_written_to(producer: ShmConnector, consumer: ShmConnector) -> None:
    array = np.zeros(8, np.uint8)
    assert producer.put(consumer.address, header(array, 0), (), {"hidden": array})
    producer.flush()
    chunk = receive(consumer)
    consumer.forget_peer(producer.address)
    consumer.release(chunk)
    consumer.flush()
    assert consumer._outlet.counters.num_messages == 0


def test_a_chunk_of_an_unreadable_form_is_dropped_and_counted_and_the_next_one_is_heard(
    forger: Forger, consumer: ShmConnector
) -> None:
    forger.send(with_sent(forger.genuine, form=b"\xc1"))
    forger.send(forger.genuine)
    assert (receive(consumer).arrays["hidden"] == 9).all()
    assert consumer.statistics().num_chunks_failed == 1


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=3), st.integers(0, 2**32))
def test_random_and_damaged_messages_never_break_a_connector(
    forger: Forger, consumer: ShmConnector, frames: list[bytes], damage: int
) -> None:
    damaged = bytearray(msgspec.msgpack.encode(forger.genuine))
    damaged[damage % len(damaged)] ^= 1 + damage % 255
    forger.outlet.send_frames(forger.target, frames)
    forger.outlet.send_frames(forger.target, [bytes(damaged), b""])
    forger.send(Parcel("ipc:///nobody", forger.genuine.arena, [], [damage, -damage]))
    forger.send(with_sent(forger.genuine, seq=-1))
    while receive(consumer).header.seq != -1:
        pass


def test_statistics_are_all_zero_at_first(producer: ShmConnector) -> None:
    counts = dataclasses.asdict(producer.statistics())
    assert counts.pop("arena_bytes") == 8 * MIB
    assert counts.pop("oldest_unreleased_s") == {}
    assert set(counts.values()) == {0}


def test_an_identity_is_of_this_process(forger: Forger) -> None:
    assert forger.genuine.arena.pid == os.getpid()
    assert forger.genuine.arena.size_bytes == 8 * MIB + PREFIX_BYTES
