"""A client that can stop at any moment of a request: a socket, what it has sent, what it has received.

In: a server, a path, a body. Out: bytes as they come. Also the server's gauges, which say whether anything is held.
"""

import http.client
import json
import re
import select
import socket

from tests.process.conftest import Server, eventually

HELD = (
    "http_requests_open",
    "requests_open",
    "requests_inflight",
    "requests_queued",
    "requests_bound",
    "replica_inflight",
    "leases",
    "client_backlog_bytes",
)
"""Gauges that are 0 when nothing of any request is left in any process."""
_SAMPLE = re.compile(r"^antiphon_(\w+?)(?:\{.*\})? (\S+)$", re.MULTILINE)


def gauges(server: Server) -> dict[str, float]:
    """Sum of every gauge and counter over all its labels."""
    connection, sums = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10), dict[str, float]()
    connection.request("GET", "/metrics")
    for name, value in _SAMPLE.findall(connection.getresponse().read().decode()):
        sums[name] = sums.get(name, 0.0) + float(value)
    connection.close()
    return sums


def assert_nothing_is_held(server: Server, timeout_s: float = 5.0) -> None:
    def held() -> dict[str, float]:
        return {name: value for name, value in gauges(server).items() if name in HELD and value}

    assert eventually(lambda: set(HELD) <= set(gauges(server)), timeout_s), "the stages have not reported yet"
    assert eventually(lambda: not held(), timeout_s), held()


class RawRequest:
    """Owns one connection; sends one POST: its head, and the part `sent` (0 to 1) of its body.

    receive_bytes: how little the kernel shall take for a client that does not read; 0 = its own default.
    """

    def __init__(
        self, server: Server, path: str, body: dict | bytes, *headers: str, receive_bytes: int = 0, sent: float = 1.0
    ) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = [] if any(header.lower().startswith("content-type") for header in headers) else ["application/json"]
        lines = [f"POST {path} HTTP/1.1", "Host: here", f"Content-Length: {len(data)}", *headers]
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
