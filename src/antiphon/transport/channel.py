"""One-way channels between processes: an Inlet hears, an Outlet speaks.

In: msgspec messages or raw frames. Out: the same, in batches, with counts and sizes per lane.
Does not know: what a message means. The only module that imports zmq.
"""

import logging
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
import zmq

from antiphon.errors import AntiphonError

log = logging.getLogger(__name__)
T = TypeVar("T")
Frame = bytes | memoryview
_MAX_BATCH = 1024
_MAX_QUEUED = 100_000
_LINGER_MS = 500
_SIGNALS_PER_READ = 64


class ChannelFullError(AntiphonError):
    """The peer has not read for so long that the channel's queue is full."""

    default_code = "channel_full"


@dataclass
class LaneCounters:
    """Messages and bytes of one lane in one direction, counted from the start."""

    num_messages: int = 0
    num_bytes: int = 0
    max_message_bytes: int = 0

    def count(self, size_bytes: int) -> None:
        """Add one message."""
        self.num_messages += 1
        self.num_bytes += size_bytes
        self.max_message_bytes = max(self.max_message_bytes, size_bytes)


class FrameInlet:
    """Owns one bound PULL socket; gives what has arrived as lists of frames."""

    def __init__(self, address: str, *, max_queued: int = 0, max_message_bytes: int = -1) -> None:
        self.address = address
        self.counters = LaneCounters()
        self._max_queued = max_queued
        self._max_message_bytes = max_message_bytes
        self._socket: zmq.Socket[bytes] | None = None

    def startup(self) -> None:
        """Bind."""
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
        socket.setsockopt(zmq.RCVHWM, self._max_queued)
        socket.setsockopt(zmq.MAXMSGSIZE, self._max_message_bytes)
        socket.bind(self.address)
        self._socket = socket

    def fileno(self) -> int:
        """An edge-triggered descriptor: when it is readable, call `receive` until it gives nothing."""
        return int(self._open().getsockopt(zmq.FD))

    def receive(self) -> list[list[bytes]]:
        """Up to 1,024 messages that have arrived, without waiting."""
        socket = self._open()
        received: list[list[bytes]] = []
        if not int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:  # costs a tenth of the exception below
            return received
        while len(received) < _MAX_BATCH:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self.counters.count(sum(map(len, frames)))
            received.append(frames)
        return received

    def close(self) -> None:
        """Unbind. What has not been received is lost."""
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None

    def _open(self) -> "zmq.Socket[bytes]":
        if self._socket is None:
            raise RuntimeError(f"inlet {self.address} is used before startup() or after close()")
        return self._socket


class Inlet(Generic[T]):
    """A FrameInlet whose messages are msgpack of one closed union; what is not is logged and dropped.

    max_queued: messages of one peer that wait here to be received; what is beyond waits in that peer's Outlet.
    """

    def __init__(
        self,
        address: str,
        decoder: msgspec.msgpack.Decoder[T],
        *,
        max_queued: int = _MAX_QUEUED,
        max_message_bytes: int = -1,
    ) -> None:
        self.address = address
        self._frames = FrameInlet(address, max_queued=max_queued, max_message_bytes=max_message_bytes)
        self._decoder = decoder

    @property
    def counters(self) -> LaneCounters:
        """What has arrived so far."""
        return self._frames.counters

    def startup(self) -> None:
        """Bind."""
        self._frames.startup()

    def fileno(self) -> int:
        """See FrameInlet.fileno."""
        return self._frames.fileno()

    def receive(self) -> list[T]:
        """The messages that have arrived, decoded and checked against the union, without waiting."""
        messages: list[T] = []
        while not messages and (received := self._frames.receive()):
            for frames in received:
                try:
                    messages.append(self._decoder.decode(frames[0]))
                except msgspec.DecodeError as error:
                    log.error("%s: dropped a message that is none of this lane's: %s", self.address, error)
        return messages

    def close(self) -> None:
        """Unbind."""
        self._frames.close()


class Outlet:
    """Owns one PUSH socket per peer address, connected at the first message to it."""

    def __init__(self, *, max_queued: int = _MAX_QUEUED) -> None:
        self.counters = LaneCounters()
        self._max_queued = max_queued
        self._encoder = msgspec.msgpack.Encoder()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}

    def send(self, address: str, message: msgspec.Struct) -> None:
        """Queue one message. ChannelFullError if the peer's queue is full."""
        self.send_frames(address, [self._encoder.encode(message)])

    def send_frames(self, address: str, frames: Sequence[Frame]) -> None:
        """Queue one message of several frames. ChannelFullError if the peer's queue is full."""
        socket = self._sockets.get(address) or self._connect(address)
        try:
            socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            raise ChannelFullError(f"{address} does not read: {self._max_queued} messages wait for it") from None
        self.counters.count(sum(map(len, frames)))

    def forget(self, address: str) -> None:
        """Drop the connection to a peer that is gone, and what waits for it."""
        socket = self._sockets.pop(address, None)
        if socket is not None:
            socket.close(linger=0)

    def close(self) -> None:
        """Close every connection, giving queued messages half a second to leave."""
        for socket in self._sockets.values():
            socket.close(linger=_LINGER_MS)
        self._sockets.clear()

    def _connect(self, address: str) -> "zmq.Socket[bytes]":
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
        socket.setsockopt(zmq.SNDHWM, self._max_queued)
        socket.connect(address)
        self._sockets[address] = socket
        return socket


def finish_sending() -> None:
    """At the end of a process: close every channel, giving what is queued half a second to leave."""
    zmq.Context.instance().destroy(linger=_LINGER_MS)


class Poller:
    """Waits until one of several descriptors is readable."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._signal_fd = -1

    def wake_on_signals(self) -> None:
        """Signals that have a Python handler end a wait from now on. Of one poller in the main thread only."""
        self._signal_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        self._poller.register(self._signal_fd, zmq.POLLIN)

    def register(self, source: FrameInlet | Inlet[T] | int) -> None:
        """Watch an inlet or a plain file descriptor."""
        target = source if isinstance(source, int) else _socket_of(source)
        self._poller.register(target, zmq.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        """True as soon as something is readable, False after `timeout_s`."""
        ready = self._poller.poll(max(0, round(timeout_s * 1000)))
        if any(source == self._signal_fd for source, _ in ready):
            os.read(self._signal_fd, _SIGNALS_PER_READ)
        return bool(ready)


def _socket_of(source: FrameInlet | Inlet[T]) -> "zmq.Socket[bytes]":
    return (source._frames if isinstance(source, Inlet) else source)._open()
