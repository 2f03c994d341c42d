"""What a server's own counters say: its page /metrics, read and judged.

In: a running server. Out: one metric by its labels, every metric's sum, whether anything of any request is held.
What an api-server counts itself is of now; of every other process a page has the last report, which may be two
seconds old: it may show a request that is over, or not yet one that runs. Start a request whose arrival such a gauge
shall tell on a server that is at rest (`assert_is_at_rest`), and believe none that it is over but
`assert_nothing_is_held`.
"""

import re

import httpx

from tests.process.conftest import Server, eventually

OPEN = ("http_requests_open", "requests_open", "client_backlog_bytes")
"""Gauges of the api-servers."""
HELD = (*OPEN, "requests_inflight", "requests_queued", "requests_bound", "replica_inflight", "leases")
"""Gauges that are 0 when nothing of any request is left in any process."""
NUM_LATER_REPORTS = 2
"""The first that is new on a page may have waited at the orchestrator when the last request was released."""
_SAMPLE = re.compile(r"^antiphon_(\w+)(\{.*\})? (\S+)$", re.MULTILINE)
_Samples = list[tuple[str, str, str]]


def metric(server: Server, name: str) -> dict[str, float]:
    """Labels (as written) -> value of one metric."""
    return _metric(_samples(server), name)


def totals(server: Server) -> dict[str, float]:
    """Metric -> its sum over all its labels."""
    return _totals(_samples(server))


def assert_nothing_is_held(server: Server, timeout_s: float = 20.0) -> None:
    """Wait until every process says so, in a report that it has made after the last request was over."""
    reports, held = _LaterReports(), dict[str, float]()

    def is_told_by_all() -> bool:
        samples = _samples(server)
        sums = _totals(samples)
        held.clear()
        held.update({name: sums[name] for name in HELD if sums.get(name)})
        if held.keys() & set(OPEN):
            reports.forget()
        reports.take(samples)
        return not held and set(HELD) <= sums.keys() and reports.are_in

    assert eventually(is_told_by_all, timeout_s), held or "some process has not reported"


def later_totals(server: Server, timeout_s: float = 20.0) -> dict[str, float]:
    """As `totals`, of a page on which every report has been made after this call."""
    reports, sums = _LaterReports(), dict[str, float]()

    def are_in() -> bool:
        samples = _samples(server)
        reports.take(samples)
        sums.update(_totals(samples))
        return reports.are_in

    assert eventually(are_in, timeout_s), "some process has not reported"
    return sums


def assert_is_at_rest(server: Server) -> None:
    """Wait until nothing is held and every stage can be asked: a gauge that is not 0 is then of what comes after."""
    assert_nothing_is_held(server)
    wait_until_ready(server)


def wait_until_ready(server: Server) -> None:
    """Wait until every stage has a live replica."""
    assert eventually(lambda: httpx.get(f"{server.url}/ready", timeout=30).status_code == 200, 60.0), "a stage is gone"


class _LaterReports:
    """Owns the ages at which processes have reported: api-server that tells -> process -> its ages on the pages."""

    def __init__(self) -> None:
        self._ages: dict[str, dict[str, set[str]]] = {}

    def forget(self) -> None:
        """What was reported until now does not count."""
        self._ages.clear()

    def take(self, samples: _Samples) -> None:
        """Note whose report the page has, and of when."""
        (teller,) = (labels for name, labels, _ in samples if name == "http_requests_open")
        ages = self._ages.setdefault(teller, {})
        for name, process, age in samples:
            if name == "uptime_seconds":
                ages.setdefault(process, set()).add(age)

    @property
    def are_in(self) -> bool:
        """True if every api-server has shown so many new reports of every process."""
        processes = {process for ages in self._ages.values() for process in ages}
        tellers = {process for process in processes if "api-server" in process}
        return all(
            len(self._ages.get(teller, {}).get(process, ())) > NUM_LATER_REPORTS
            for teller in tellers
            for process in processes
        )


def _metric(samples: _Samples, wanted: str) -> dict[str, float]:
    return {labels: float(value) for name, labels, value in samples if name == wanted}


def _totals(samples: _Samples) -> dict[str, float]:
    sums: dict[str, float] = {}
    for name, _, value in samples:
        sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def _samples(server: Server) -> _Samples:
    return _SAMPLE.findall(httpx.get(f"{server.url}/metrics", timeout=30).text)
