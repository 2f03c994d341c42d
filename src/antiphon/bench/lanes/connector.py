"""Part d of `bench lanes`: the shm connector between two processes, one way and there and back.

In: an effort. Out: rows; StageError if a chunk was lost. Does not know: stages, requests beyond their ids.

`python -m antiphon.bench.lanes.connector ADDRESS` is the consumer.
"""

import itertools
import sys
import tempfile
import time
from statistics import median
from types import TracebackType
from typing import Self

import numpy as np

from antiphon.bench.lanes.bare import BareChain, Helper, bare_outputs_per_s, memcpy_ms_of, memcpy_per_s
from antiphon.bench.lanes.effort import Deadline, Effort, at_least
from antiphon.bench.measures import Bound, Goal, Row
from antiphon.config.deploy import ConnectorDeploy
from antiphon.connector.base import Chunk
from antiphon.connector.shm import ShmConnector
from antiphon.errors import StageError
from antiphon.messages.interstage import ChunkFlag, ChunkForm, ChunkHeader, TensorSpec
from antiphon.process import die_with_parent
from antiphon.transport.channel import Poller

MODULE = "antiphon.bench.lanes.connector"
_KIB, _MIB = 1 << 10, 1 << 20
_SENT_BYTES = {_KIB: 100 * _MIB, 256 * _KIB: 2048 * _MIB, 4 * _MIB: 2048 * _MIB}
_GOALS = {_KIB: at_least(200_000), 256 * _KIB: at_least(15_000), 4 * _MIB: at_least(2000)}
_ARENA_BYTES = ConnectorDeploy().arena_mib * _MIB
_PREFILL_BYTES = 20_000_000
_PREFILL_ARENA_BYTES = 128 * _MIB
_NUM_PREFILLS = 20
_STEP_BYTES = 64 * 1024  # what a stage puts before it sends
_WAIT_S = 0.2
_END = int(ChunkFlag.END)
_COUNT, _PING, _SEEN = "count", "ping", "seen"


class HopProducer:
    """Owns this process's connector and what the consumer has answered."""

    def __init__(self, address: str, consumer: str, deadline: Deadline, *, arena_bytes: int = _ARENA_BYTES) -> None:
        self._connector = ShmConnector(address, arena_bytes=arena_bytes)
        self._consumer = consumer
        self._deadline = deadline
        self._poller = Poller()
        self._answers: list[int] = []
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        """Open the connector; returns when the consumer has answered."""
        self._connector.startup()
        self._poller.register(self._connector.fileno())
        self.ping(np.zeros((1, 1), np.uint8))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._connector.close()

    def send(self, num_chunks: int, row_bytes: int) -> float:
        """Chunks per second until the consumer has read the first byte of all; StageError if it saw other values."""
        rows = [np.full((1, row_bytes), number, np.uint8) for number in range(max(1, min(16, 64 * _MIB // row_bytes)))]
        form = _form(f"send-{next(self._numbers)}", _COUNT, rows[0])
        began_s = time.perf_counter()
        chunks_per_step = max(1, _STEP_BYTES // row_bytes)
        for seq in range(num_chunks):
            self._put(_header(form, seq, is_last=seq == num_chunks - 1), rows[seq % len(rows)])
            if seq % chunks_per_step == 0:
                self._connector.flush()
                self._take_in()
        seen = self._answer()
        per_s = num_chunks / (time.perf_counter() - began_s)
        expected = sum(seq % len(rows) for seq in range(num_chunks))
        if seen != expected:
            raise StageError(f"{form.request_id}: the consumer saw values of sum {seen}, expected {expected}")
        return per_s

    def ping(self, row: np.ndarray) -> tuple[float, float]:
        """(there and back, put to first read) of one chunk, in seconds."""
        began_ns = time.monotonic_ns()
        self._put(_header(_form(f"ping-{next(self._numbers)}", _PING, row), 0), row)
        read_ns = self._answer()
        return (time.monotonic_ns() - began_ns) / 1e9, (read_ns - began_ns) / 1e9

    def _put(self, header: ChunkHeader, row: np.ndarray) -> None:
        while not self._connector.put(self._consumer, header, [{_SEEN: row}], {}):
            self._wait("credit")

    def _answer(self) -> int:
        while not self._answers:
            self._wait("the consumer")
        return self._answers.pop()

    def _wait(self, waits_for: str) -> None:
        self._deadline.check(waits_for)
        self._connector.flush()
        self._poller.wait(_WAIT_S)
        self._take_in()

    def _take_in(self) -> None:
        """Credit and answers, as a stage does after every step."""
        while (chunk := self._connector.get()) is not None:
            self._answers.append(int(chunk.arrays[_SEEN][0, 0]))
            self._connector.release(chunk)


class HopConsumer:
    """Owns the other process's connector, and the sum of the values that it has read."""

    def __init__(self, address: str) -> None:
        self._connector = ShmConnector(address, arena_bytes=_MIB)
        self._poller = Poller()
        self._sum = 0

    def run(self) -> None:
        """Read until the process is ended."""
        self._connector.startup()
        self._poller.register(self._connector.fileno())
        while True:
            while (chunk := self._connector.get()) is not None:
                self._read(chunk)
                self._connector.release(chunk)
            self._connector.flush()
            self._poller.wait(_WAIT_S)

    def _read(self, chunk: Chunk) -> None:
        header = chunk.header
        self._sum += int(chunk.arrays[_SEEN][0, 0])
        if header.is_terminal:
            answer = time.monotonic_ns() if header.form.edge == _PING else self._sum
            row = np.full((1, 1), answer, np.int64)
            answered = _header(_form(header.form.request_id, "answer", row), 0)
            self._connector.put(chunk.reply_address, answered, [{_SEEN: row}], {})
            self._sum = 0


def _form(request_id: str, edge: str, row: np.ndarray) -> ChunkForm:
    return ChunkForm(request_id, 0, edge, "bench", (TensorSpec(_SEEN, row.dtype.name, row.shape[1:], True),))


def _header(form: ChunkForm, seq: int, *, is_last: bool = True) -> ChunkHeader:
    return ChunkHeader(form, seq, seq, 1, _END if is_last else 0)


async def connector(effort: Effort) -> list[Row]:
    """Part d."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="lanes-") as directory:
        consumer = f"ipc://{directory}/consumer"
        bare = await bare_outputs_per_s(f"ipc://{directory}/bare", 100_000, 1)
        async with BareChain(directory, 1) as chain:
            bare_hop_ms = median(await chain.latencies_ms(effort.num_pings)) / 2
        async with Helper(consumer, module=MODULE):
            deadline = Deadline(effort.part_s)
            with HopProducer(f"ipc://{directory}/producer", consumer, deadline) as producer:
                rows += _one_way(producer, effort, bare)
                row = np.zeros((1, _KIB), np.uint8)
                hop_ms = median([producer.ping(row)[0] * 500 for _ in range(effort.num_pings)])
                rows.append(Row("d: hop of 1 KiB, p50 / bare relay", "ms", hop_ms, bare_hop_ms))
            large = HopProducer(f"ipc://{directory}/large", consumer, deadline, arena_bytes=_PREFILL_ARENA_BYTES)
            with large as producer:
                rows.append(_prefill(producer))
    return rows


def _one_way(producer: HopProducer, effort: Effort, bare: float) -> list[Row]:
    rows = []
    for size, goal in _GOALS.items():
        num_chunks = max(16, int(_SENT_BYTES[size] // size * effort.seconds / 2))
        producer.send(num_chunks, size)  # the first round meets pages of the arena that nobody has written
        rate = median([producer.send(num_chunks, size) for _ in range(effort.repeats)])
        against, reference = ("bare socket", bare) if size == _KIB else ("memcpy", memcpy_per_s(size))
        name = f"{size // _KIB} KiB" if size < _MIB else f"{size // _MIB} MiB"
        rows.append(Row(f"d: shm, one way, {name} / {against}", "msg/s", rate, reference, goal))
        gb = size / 1e9
        rows.append(Row(f"d: shm, one way, {name}, in GB / memcpy", "GB/s", rate * gb, memcpy_per_s(size) * gb))
    return rows


def _prefill(producer: HopProducer) -> Row:
    row = np.ones((1, _PREFILL_BYTES), np.uint8)
    for _ in range(3):  # pages of the arena that nobody has written yet
        producer.ping(row)
    ours_ms = median([producer.ping(row)[1] * 1000 for _ in range(_NUM_PREFILLS)])
    memcpy_ms = median(memcpy_ms_of(row, _NUM_PREFILLS))
    label = f"d: hand-off of {_PREFILL_BYTES // 1_000_000} MB, put to first read / memcpy"
    return Row(label, "ms", ours_ms, memcpy_ms, Goal(Bound.AT_MOST, 1.5))


if __name__ == "__main__":
    die_with_parent()
    HopConsumer(sys.argv[1]).run()
