"""The yardsticks of the lanes: bare sockets (ZeroMQ's), memcpy and uvicorn, with nothing of the runtime around them.

In: how many, how large. Out: figures per second. Does not know: the runtime, beyond the shape of a client frame.

`python -m antiphon.bench.lanes.bare push ADDRESS NUM_FRAMES NUM_OUTPUTS | relay IN OUT | http PORT NUM_EVENTS EVENT`
"""

import asyncio
import mmap
import os
import sys
import time
from collections.abc import Callable

import msgspec
import numpy as np

from antiphon.errors import ConfigError
from antiphon.messages.client import Addressed, ClientFrame, TokenDelta
from antiphon.messages.codec import CLIENT_FRAME
from antiphon.process import die_with_parent

try:
    import zmq
except ImportError as error:
    raise ConfigError(
        ["bench lanes measures against pyzmq; in antiphon's checkout, run: pip install -e '.[bench]'"]
    ) from error

_MODULE = "antiphon.bench.lanes.bare"
_CHUNKED_HEAD = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
_COPIED_BYTES = 256 << 20
_ARENA_BYTES = 64 << 20


class BareSocket:
    """Owns a bound PULL socket that a running event loop drains."""

    def __init__(self, address: str, on_frames: Callable[[list[bytes]], None]) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(address)
        self._on_frames = on_frames
        self._fd = int(self._socket.getsockopt(zmq.FD))
        asyncio.get_running_loop().add_reader(self._fd, self._drain)

    def close(self) -> None:
        """Unbind."""
        asyncio.get_running_loop().remove_reader(self._fd)
        self._socket.close(linger=0)

    def _drain(self) -> None:
        frames = []
        while True:
            try:
                frames.append(self._socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                break
        if frames:
            self._on_frames(frames)


class BareConsumers:
    """Owns one task per request that takes what has come for it, woken once for all of it."""

    def __init__(self, num_consumers: int, num_wanted: int) -> None:
        self._waiting: list[list[object]] = [[] for _ in range(num_consumers)]
        self._wakes = [asyncio.Event() for _ in range(num_consumers)]
        self._num_wanted = num_wanted
        self.num_taken = 0
        self.began_s = 0.0

    def receive(self, frames: list[bytes]) -> None:
        """Sort the outputs of frames that have come, then wake those who got some."""
        self.began_s = self.began_s or time.perf_counter()
        for frame in frames:
            for addressed in CLIENT_FRAME.decode(frame).addressed:
                self._waiting[int(addressed.request_id)] += addressed.outputs
        for waiting, wake in zip(self._waiting, self._wakes, strict=True):
            if waiting:
                wake.set()

    async def run(self) -> float:
        """Outputs per second, when all have been taken."""
        await asyncio.gather(*(self._consume(number) for number in range(len(self._wakes))))
        return self.num_taken / (time.perf_counter() - self.began_s)

    async def _consume(self, number: int) -> None:
        left = self._num_wanted
        while left > 0:
            await self._wakes[number].wait()
            self._wakes[number].clear()
            taken, self._waiting[number] = self._waiting[number], []
            for _ in taken:
                self.num_taken += 1
            left -= len(taken)


class Helper:
    """Owns one process of this module, or of another; ends it at the end of the block."""

    def __init__(self, *arguments: str, module: str = _MODULE) -> None:
        self._arguments = arguments
        self._module = module
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> "Helper":
        parent = ("--parent", str(os.getpid()))
        command = (sys.executable, "-m", self._module, *self._arguments, *parent)
        self._process = await asyncio.create_subprocess_exec(*command)
        return self

    @property
    def pid(self) -> int:
        """The process's, once it has been started."""
        assert self._process is not None
        return self._process.pid

    async def __aexit__(self, *_: object) -> None:
        if self._process is None:  # it was not started
            return
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


async def bare_outputs_per_s(address: str, num_frames: int, num_outputs: int) -> float:
    """Outputs/s that `num_outputs` consumers take out of `num_frames` frames, each with an output for everyone."""
    consumers = BareConsumers(num_outputs, num_frames)
    socket = BareSocket(address, consumers.receive)
    try:
        async with Helper("push", address, str(num_frames), str(num_outputs)):
            return await consumers.run()
    finally:
        socket.close()


class BareChain:
    """Owns a message's way through relay processes and back here: what a request over bare sockets takes."""

    def __init__(self, directory: str, num_hops: int) -> None:
        self._addresses = [f"ipc://{directory}/hop.{number}" for number in range(num_hops + 1)]
        self._helpers = [
            Helper("relay", here, there) for here, there in zip(self._addresses, self._addresses[1:], strict=False)
        ]
        self._waiting: dict[bytes, asyncio.Future[None]] = {}
        self._push: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
        self._pull: BareSocket | None = None
        self._num_asked = 0

    async def __aenter__(self) -> "BareChain":
        self._pull = BareSocket(self._addresses[-1], self._answered)
        self._push.connect(self._addresses[0])
        try:
            for helper in self._helpers:
                await helper.__aenter__()
            await self.ask()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._pull is not None
        for helper in self._helpers:
            await helper.__aexit__()
        self._push.close(linger=0)
        self._pull.close()

    async def ask(self) -> None:
        """Send a message through the chain and wait for it."""
        self._num_asked += 1
        name = b"%032d" % self._num_asked
        answer = self._waiting[name] = asyncio.get_running_loop().create_future()
        self._push.send(name)
        await answer

    async def asks_per_s(self, num_asks: int, num_concurrent: int) -> float:
        """Messages through the chain per second, `num_concurrent` at any time."""
        left, began_s = iter(range(num_asks)), time.perf_counter()

        async def ask_in_turn() -> None:
            for _ in left:
                await self.ask()

        await asyncio.gather(*(ask_in_turn() for _ in range(num_concurrent)))
        return num_asks / (time.perf_counter() - began_s)

    async def latencies_ms(self, num_asks: int) -> list[float]:
        """How long each takes, one after the other."""
        taken_ms = []
        for _ in range(num_asks):
            began_s = time.perf_counter()
            await self.ask()
            taken_ms.append((time.perf_counter() - began_s) * 1000)
        return taken_ms

    def _answered(self, names: list[bytes]) -> None:
        for name in names:
            answer = self._waiting.pop(name)
            if not answer.done():  # nobody waits any more: the part's time is up
                answer.set_result(None)


def memcpy_per_s(row_bytes: int) -> float:
    """Rows of that size that one process copies into a mapped arena per second, out of buffers that were not cached."""
    arena = np.frombuffer(mmap.mmap(-1, _ARENA_BYTES), np.uint8)
    arena[:] = 1
    rows = np.ones((max(1, _ARENA_BYTES // row_bytes), row_bytes), np.uint8)
    num_rows = max(1, _COPIED_BYTES // row_bytes)
    began_s = time.perf_counter()
    for number in range(num_rows):
        slot = number % len(rows)
        arena[slot * row_bytes : (slot + 1) * row_bytes] = rows[slot]
    return num_rows / (time.perf_counter() - began_s)


def memcpy_ms_of(row: np.ndarray, num_copies: int) -> list[float]:
    """How long each of several copies of the same buffer to the same place of a mapped arena takes."""
    arena = np.frombuffer(mmap.mmap(-1, row.nbytes), np.uint8)
    arena[:] = 1
    taken_ms = []
    for _ in range(num_copies):
        began_s = time.perf_counter()
        arena[:] = row.reshape(-1).view(np.uint8)
        taken_ms.append((time.perf_counter() - began_s) * 1000)
    return taken_ms


def _push(address: str, num_frames: int, num_outputs: int) -> None:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.connect(address)
    addressed = [Addressed(str(number), 0, [TokenDelta([number])]) for number in range(num_outputs)]
    frame = msgspec.msgpack.encode(ClientFrame("bare/0", addressed))
    for _ in range(num_frames):
        socket.send(frame)
    socket.close()
    zmq.Context.instance().term()


def _relay(here: str, there: str) -> None:
    pull: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
    push: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
    pull.bind(here)
    push.connect(there)
    while True:
        push.send(pull.recv())


def _serve(port: int, num_events: int, event: bytes) -> None:
    import uvicorn
    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope

    async def app(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _CHUNKED_HEAD, "trailers": False})
        for _ in range(num_events):
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    uvicorn.run(app, port=port, loop="uvloop", http="httptools", lifespan="off", log_level="error")


def main(arguments: list[str]) -> None:
    """Be one of the helpers."""
    match arguments:
        case ["push", address, num_frames, num_outputs]:
            _push(address, int(num_frames), int(num_outputs))
        case ["relay", here, there]:
            _relay(here, there)
        case ["http", port, num_events, event]:
            _serve(int(port), int(num_events), event.encode())
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    die_with_parent()
    main(sys.argv[1 : sys.argv.index("--parent")])
