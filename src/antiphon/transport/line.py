"""The sending side of a channel: a connection to one peer, and what waits for it.

In: packed messages. Out: bytes on a Unix socket, as the peer makes room for them. Does not know: what they mean.
"""

import errno
import resource
import socket
import threading
from collections import deque
from itertools import islice

from antiphon.errors import AntiphonError

_SEND_BUFFER_BYTES = 256 * 1024
_MESSAGES_PER_SEND = 64


class ChannelFullError(AntiphonError):
    """The peer has not read for so long that the channel's queue is full."""

    default_code = "channel_full"


class NoDescriptorError(AntiphonError):
    """This process has as many files open as it may, and so cannot connect to a peer."""

    default_code = "no_descriptor"


class Line:
    """Owns the connection to one peer and the messages that wait for it.

    While `max_queued` messages wait, or messages of `max_queued_bytes` together (0: any number), none is taken: so one
    that is larger than that is taken, alone or last.

    A peer that does not listen, not yet or not any more, is tried again at every message and by the Pump. What it had
    not read when its process ended is lost.
    """

    def __init__(self, path: str, *, max_queued: int, max_queued_bytes: int) -> None:
        self._path = path
        self._max_queued = max_queued
        self._max_queued_bytes = max_queued_bytes
        self._waiting: deque[bytes] = deque()
        self._num_waiting_bytes = 0
        """Of whole messages, also of the first."""
        self._num_gone = 0
        """Bytes of the first message that have left."""
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """The socket; -1 while nobody listens. Of this moment: another thread may close it."""
        connection = self._socket
        return connection.fileno() if connection is not None else -1

    def open(self) -> None:
        """Connect, if the peer listens. NoDescriptorError if there is no descriptor for that."""
        with self._lock:
            if self._socket is None:
                try:
                    self._socket = _connected(self._path)
                except OSError as error:
                    if error.errno in (errno.EMFILE, errno.ENFILE):
                        raise NoDescriptorError(_no_descriptor(self._path)) from error

    def queue(self, message: bytes) -> None:
        """Have the message wait for `flush`, behind others. ChannelFullError if too many wait already."""
        with self._lock:
            if self._waiting and self._is_full():
                self._flush()
                if self._is_full():
                    raise ChannelFullError(
                        f"{self._path} does not read: {len(self._waiting)} messages of {self._num_waiting_bytes} bytes "
                        "wait for it"
                    )
            self._waiting.append(message)
            self._num_waiting_bytes += len(message)

    def flush(self) -> bool:
        """Send what the peer has room for; True if some still wait."""
        with self._lock:
            self._flush()
            return bool(self._waiting)

    def close(self) -> None:
        """Close the connection and drop what waits."""
        with self._lock:
            self._waiting.clear()
            self._num_gone = self._num_waiting_bytes = 0
            self._disconnect()

    def _is_full(self) -> bool:
        return 0 < self._max_queued <= len(self._waiting) or 0 < self._max_queued_bytes <= self._num_waiting_bytes

    def _flush(self) -> None:
        while self._waiting:
            try:
                if self._socket is None:
                    self._socket = _connected(self._path)
                self._gone(self._push(self._socket))
            except BlockingIOError:
                return
            except OSError:
                return self._disconnect()

    def _push(self, connection: socket.socket) -> int:
        first = self._waiting[0]
        if len(self._waiting) == 1 and not self._num_gone:
            return connection.send(first)
        others = islice(self._waiting, 1, _MESSAGES_PER_SEND)
        return connection.sendmsg([memoryview(first)[self._num_gone :], *others])

    def _gone(self, num_bytes: int) -> None:
        num_bytes += self._num_gone
        while self._waiting and num_bytes >= (size_bytes := len(self._waiting[0])):
            self._waiting.popleft()
            self._num_waiting_bytes -= size_bytes
            num_bytes -= size_bytes
        self._num_gone = num_bytes

    def _disconnect(self) -> None:
        if self._num_gone:  # the rest of a message that was cut off is of no use to anybody
            self._gone(len(self._waiting[0]) - self._num_gone)
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _no_descriptor(path: str) -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"no connection to {path}: this process may have {limit} files open, and has, or the machine has as many as it "
        "may; raise the limit (ulimit -n, LimitNOFILE= in systemd; fs.file-max)"
    )


def _connected(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection
