"""The deadline of a client that does not read: how long bytes may wait for it.

In: a transport, and the word that bytes wait or have left. Out: a reset of the connection once the time is up.
Does not know: HTTP, WebSockets, what the bytes are.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Callable

_log = logging.getLogger(__name__)
_CHECK_S = 1.0
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def reset(transport: asyncio.Transport) -> None:
    """Close at once, and let the kernel drop what it still holds for this client."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()


class ReadClock:
    """Owns the time since the client of one connection last took a byte. request_id: for the log line.

    The connection is told to pause as soon as the kernel takes no more, so what waits is at most one ASGI message.
    """

    def __init__(self, transport: asyncio.Transport, deadline_s: float, request_id: Callable[[], str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._deadline_s = deadline_s
        self._request_id = request_id
        self._num_unread_bytes = 0
        self._unread_since_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        transport.set_write_buffer_limits(high=0)

    def start(self) -> None:
        """Bytes wait for the client."""
        self._num_unread_bytes = self._transport.get_write_buffer_size()
        self._unread_since_s = self._loop.time()
        self._check_later()

    def stop(self) -> None:
        """The client has everything, or the connection is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_later(self) -> None:
        left_s = self._unread_since_s + self._deadline_s - self._loop.time()
        self._timer = self._loop.call_later(min(_CHECK_S, max(0.0, left_s)), self._check)

    def _check(self) -> None:
        num_bytes = self._transport.get_write_buffer_size()
        if num_bytes < self._num_unread_bytes:
            self._num_unread_bytes, self._unread_since_s = num_bytes, self._loop.time()
        if self._loop.time() - self._unread_since_s < self._deadline_s:
            return self._check_later()
        _log.warning(
            "req=%s: its client has taken no byte for %g s while %d bytes wait for it; the connection is reset; "
            "raise server.client_read_deadline_s for clients that pause longer",
            *(self._request_id(), self._deadline_s, num_bytes),
        )
        reset(self._transport)
