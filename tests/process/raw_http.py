"""A client that can stop at any moment of a request: a socket, what it has sent, what it has received.

In: a server, a path, a body. Out: bytes as they come.
"""

import json
import select
import socket

from tests.process.conftest import Server


class RawRequest:
    """Owns one connection; sends one POST: its head, and the part `sent` (0 to 1) of its body.

    receive_bytes: how little the kernel shall take for a client that does not read; 0 = its own default.
    """

    def __init__(
        self, server: Server, path: str, body: dict | bytes, *headers: str, receive_bytes: int = 0, sent: float = 1.0
    ) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = [] if any(header.lower().startswith("content-type") for header in headers) else ["application/json"]
        lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(data)}", *headers]
        lines += [f"Content-Type: {value}" for value in kind]
        self._socket = socket.socket()
        if receive_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.settimeout(60)
        self._socket.connect(("127.0.0.1", server.port))
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode() + data[: int(len(data) * sent)])
        self.received = b""

    def read_until(self, mark: bytes, times: int = 1) -> None:
        """Receive until `mark` has come so many times."""
        while self.received.count(mark) < times:
            assert self.read_more(), f"the connection was closed before {mark!r}: {self.received[-300:]!r}"

    def read_more(self) -> bool:
        """Wait for some bytes; False if the connection was closed instead."""
        data = self._socket.recv(65_536)
        self.received += data
        return bool(data)

    def has_answer(self) -> bool:
        """True if there is something to read."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def is_reset(self) -> bool:
        """True once the server has given the connection up; reads nothing."""
        poll = select.poll()
        poll.register(self._socket, 0)
        return any(happened & (select.POLLERR | select.POLLHUP) for _, happened in poll.poll(0))

    def hang_up(self) -> None:
        self._socket.close()
