"""One-way channels between processes: an Inlet hears, an Outlet speaks, over Unix stream sockets.

In: msgspec messages or raw frames. Out: the same, in batches, with counts and sizes per lane.
Does not know: what a message means. With its parts (framing, line, pump) the only module that opens sockets of lanes.
"""

import logging
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from antiphon.transport.address import path_of, remove_socket
from antiphon.transport.framing import Frame, FrameReader, NoMessageError, packed
from antiphon.transport.line import ChannelFullError, Line, NoDescriptorError
from antiphon.transport.pump import Pump

__all__ = [
    "ChannelFullError",
    "Frame",
    "FrameInlet",
    "GatheringOutlet",
    "Inlet",
    "LaneCounters",
    "NoDescriptorError",
    "Outlet",
    "Poller",
]

log = logging.getLogger(__name__)
T = TypeVar("T")
_MAX_QUEUED = 100_000
_READ_BYTES, _MAX_READ_BYTES = 64 * 1024, 1024 * 1024  # the second is more than a Unix socket's buffers hold
_ACCEPT_PAUSE_S = 0.1
_LINGER_S = 0.5
_LINGER_STEP_S = 0.002
_SIGNALS_PER_READ = 64


@dataclass
class LaneCounters:
    """Messages and bytes of one lane in one direction, counted from the start."""

    num_messages: int = 0
    num_bytes: int = 0
    max_message_bytes: int = 0
    num_unreached: int = 0
    """Connections that could not be opened for want of a descriptor."""

    def count(self, size_bytes: int) -> None:
        """Add one message."""
        self.num_messages += 1
        self.num_bytes += size_bytes
        if size_bytes > self.max_message_bytes:
            self.max_message_bytes = size_bytes


class FrameInlet:
    """Owns one listening socket and a connection of each peer; gives what has arrived as lists of frames.

    A peer that sends what is no message, or one over `max_message_bytes` (-1: any size), is cut off.
    """

    def __init__(self, address: str, *, max_message_bytes: int = -1) -> None:
        self.address = address
        self.counters = LaneCounters()
        self._max_message_bytes = max_message_bytes
        self._listener: socket.socket | None = None
        self._epoll: select.epoll | None = None
        self._peers: dict[int, tuple[socket.socket, FrameReader]] = {}
        self._accepts_again_s = 0.0
        """When a peer that could not be let in (open files are bounded) is tried again; 0 = none waits for that."""

    def startup(self) -> None:
        """Listen. An OSError leaves nothing open, and no socket file."""
        remove_socket(self.address)
        with ExitStack() as opened:
            listener = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            listener.bind(path_of(self.address))
            opened.callback(remove_socket, self.address)
            listener.listen(socket.SOMAXCONN)
            epoll = opened.enter_context(select.epoll())
            epoll.register(listener, select.EPOLLIN)
            opened.pop_all()
        self._listener, self._epoll = listener, epoll

    def fileno(self) -> int:
        """Readable while something has arrived that `receive` has not given.

        Not of a peer that could not be let in: `receive` tries that again, so call it once a second in any case.
        """
        return self._open().fileno()

    def receive(self) -> list[list[bytes]]:
        """Messages that have arrived, without waiting; none only if none is there.

        Of each peer at most 64 KiB, or the rest of a message that has begun.
        """
        epoll = self._epoll or self._open()
        received: list[list[bytes]] = []
        if self._accepts_again_s and time.monotonic() >= self._accepts_again_s:
            self._watch_listener(pause_s=0.0)
        while not received and (ready := epoll.poll(0)):
            for fd, _ in ready:
                if fd in self._peers:
                    self._read(fd, received)
                else:
                    self._accept()
        for frames in received:
            self.counters.count(sum(map(len, frames)))
        return received

    def close(self) -> None:
        """Listen no more. What has not been received is lost."""
        if self._listener is None or self._epoll is None:
            return
        for fd in list(self._peers):
            self._forget(fd)
        self._epoll.close()
        self._listener.close()
        self._listener = self._epoll = None
        remove_socket(self.address)

    def _open(self) -> select.epoll:
        if self._epoll is None:
            raise RuntimeError(f"inlet {self.address} is used before startup() or after close()")
        return self._epoll

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            peer, _ = self._listener.accept()
        except OSError as error:  # it waits in the kernel, with what it sends
            log.warning("%s: a peer could not connect and is tried again: %s", self.address, error)
            return self._watch_listener(pause_s=_ACCEPT_PAUSE_S)
        peer.setblocking(False)
        self._peers[peer.fileno()] = (peer, FrameReader(self._max_message_bytes))
        self._open().register(peer, select.EPOLLIN)

    def _watch_listener(self, *, pause_s: float) -> None:
        assert self._listener is not None
        self._open().modify(self._listener, 0 if pause_s else select.EPOLLIN)
        self._accepts_again_s = time.monotonic() + pause_s if pause_s else 0.0

    def _read(self, fd: int, received: list[list[bytes]]) -> None:
        peer, reader = self._peers[fd]
        try:
            data = peer.recv(min(max(_READ_BYTES, reader.num_wanted), _MAX_READ_BYTES))
            reader.feed(data, received)
        except BlockingIOError:
            return
        except NoMessageError as error:
            log.error("%s: a peer sent what is none of this lane's, and is cut off: %s", self.address, error.message)
            data = b""
        except OSError:  # it has ended
            data = b""
        if not data:
            self._forget(fd)

    def _forget(self, fd: int) -> None:
        peer, _ = self._peers.pop(fd)
        self._open().unregister(fd)
        peer.close()


class Inlet(Generic[T]):
    """A FrameInlet whose messages are msgpack of one closed union; what is not is logged and dropped."""

    def __init__(self, address: str, decoder: msgspec.msgpack.Decoder[T], *, max_message_bytes: int = -1) -> None:
        self.address = address
        self._frames = FrameInlet(address, max_message_bytes=max_message_bytes)
        self._decoder = decoder

    @property
    def counters(self) -> LaneCounters:
        """What has arrived so far."""
        return self._frames.counters

    def startup(self) -> None:
        """Listen."""
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
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    log.error("%s: dropped a message that is none of this lane's: %s", self.address, error)
        return messages

    def close(self) -> None:
        """Listen no more."""
        self._frames.close()


class Outlet:
    """Owns a line to each peer address, made at the first message to it.

    A message leaves at once. Where the peer has no room for it, or does not listen yet, it waits, if less than
    `max_queued` others and `max_queued_bytes` wait (0: any number), and leaves when it can; sending never waits.
    """

    def __init__(self, *, max_queued: int = _MAX_QUEUED, max_queued_bytes: int = 0) -> None:
        self.counters = LaneCounters()
        self._max_queued = max_queued
        self._max_queued_bytes = max_queued_bytes
        self._encoder = msgspec.msgpack.Encoder()
        self._lines: dict[str, Line] = {}
        self._pump = Pump()

    def send(self, address: str, message: msgspec.Struct) -> None:
        """Send one message. ChannelFullError if too many wait for the peer."""
        self.send_frames(address, (self._encoder.encode(message),))

    def send_frames(self, address: str, frames: Sequence[Frame]) -> None:
        """Send one message of several frames, which may be reused. ChannelFullError if too many wait for the peer."""
        line = self._queue(address, frames)
        if line.flush():
            self._pump.add(line)

    def reach(self, address: str) -> None:
        """Connect to a peer that listens before anything is sent to it, so that what cannot leave is not begun.

        NoDescriptorError, which is counted, if this process has no descriptor for the connection. What is sent all the
        same waits until there is one.
        """
        try:
            self._line(address).open()
        except NoDescriptorError:
            self.counters.num_unreached += 1
            raise

    def _line(self, address: str) -> Line:
        line = self._lines.get(address)
        if line is None:
            line = self._lines[address] = Line(
                path_of(address), max_queued=self._max_queued, max_queued_bytes=self._max_queued_bytes
            )
        return line

    def _queue(self, address: str, frames: Sequence[Frame]) -> Line:
        line = self._line(address)
        line.queue(packed(frames))
        self.counters.count(sum(map(len, frames)))
        return line

    def forget(self, address: str) -> None:
        """Drop the connection to a peer that is gone, and what waits for it."""
        line = self._lines.pop(address, None)
        if line is not None:
            line.close()

    def close(self) -> None:
        """Close every connection, giving waiting messages half a second to leave where somebody listens."""
        self._pump.close()
        gives_up_s = time.monotonic() + _LINGER_S
        for line in self._lines.values():
            while line.flush() and line.fileno() >= 0 and time.monotonic() < gives_up_s:
                time.sleep(_LINGER_STEP_S)
            line.close()
        self._lines.clear()


class GatheringOutlet(Outlet):
    """An Outlet whose messages leave with `flush`: those for one peer together, which wakes it once."""

    def __init__(self, *, max_queued: int = _MAX_QUEUED) -> None:
        super().__init__(max_queued=max_queued)
        self._gathered: dict[Line, None] = {}

    def send_frames(self, address: str, frames: Sequence[Frame]) -> None:
        """Take one message. ChannelFullError if too many wait for the peer."""
        self._gathered[self._queue(address, frames)] = None

    def flush_to(self, address: str) -> None:
        """Send what has been taken for one peer, which has been spoken to."""
        line = self._lines[address]
        if line.flush():
            self._pump.add(line)
        self._gathered.pop(line, None)

    def flush(self) -> None:
        """Send what has been taken, to the peers in the order in which they were spoken to."""
        for line in self._gathered:
            if line.flush():
                self._pump.add(line)
        self._gathered.clear()


class Poller:
    """Waits until one of several descriptors is readable."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._signal_fd = -1

    def wake_on_signals(self) -> None:
        """Signals that have a Python handler end a wait from now on. Of one poller in the main thread only."""
        self._signal_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        self.register(self._signal_fd)

    def register(self, source: FrameInlet | Inlet[T] | int) -> None:
        """Watch an inlet or a plain file descriptor."""
        self._poll.register(source if isinstance(source, int) else source.fileno(), select.POLLIN)

    def unregister(self, source: FrameInlet | Inlet[T] | int) -> None:
        """Watch it no more. KeyError if it is not watched."""
        self._poll.unregister(source if isinstance(source, int) else source.fileno())

    def wait(self, timeout_s: float) -> bool:
        """True as soon as something is readable, False after `timeout_s`."""
        ready = self._poll.poll(max(0.0, timeout_s * 1000))
        for fd, _ in ready:
            if fd == self._signal_fd:
                os.read(fd, _SIGNALS_PER_READ)
        return bool(ready)
