"""The last StatsReport of every process of the server, as the orchestrator passes them on.

In: StatsReports. Out: their counters. Does not know: what they count.
"""

from collections.abc import Iterator

from antiphon.messages.control import POOLS, Counter, StatsReport


class ReportBook:
    """Owns one report per process. The orchestrator begins each round with its pools': who had no part in a whole round
    has gone."""

    def __init__(self) -> None:
        self._reports: dict[str, StatsReport] = {}
        self._heard: set[str] = set()

    def take_in(self, report: StatsReport) -> None:
        """Keep the newest report of its source."""
        if report.source == POOLS:
            self._reports = {source: old for source, old in self._reports.items() if source in self._heard}
            self._heard.clear()
        self._heard.add(report.source)
        self._reports[report.source] = report

    def counters(self) -> Iterator[Counter]:
        """Of all processes."""
        for report in self._reports.values():
            yield from report.counters
