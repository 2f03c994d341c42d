"""What a server's own counters say: its page /metrics, read and judged.

In: a running server. Out: one metric by its labels, every metric's sum, whether anything of any request is held.
"""

import re

import httpx

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
_SAMPLE = re.compile(r"^antiphon_(\w+)(\{.*\})? (\S+)$", re.MULTILINE)


def metric(server: Server, name: str) -> dict[str, float]:
    """Labels (as written) -> value of one metric."""
    return {labels: float(value) for found, labels, value in _samples(server) if found == name}


def totals(server: Server) -> dict[str, float]:
    """Metric -> its sum over all its labels."""
    sums: dict[str, float] = {}
    for name, _, value in _samples(server):
        sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def assert_nothing_is_held(server: Server, timeout_s: float = 5.0) -> None:
    def held() -> dict[str, float]:
        return {name: value for name, value in totals(server).items() if name in HELD and value}

    assert eventually(lambda: set(HELD) <= set(totals(server)), timeout_s), "the stages have not reported yet"
    assert eventually(lambda: not held(), timeout_s), held()


def _samples(server: Server) -> list[tuple[str, str, str]]:
    return _SAMPLE.findall(httpx.get(f"{server.url}/metrics", timeout=30).text)
