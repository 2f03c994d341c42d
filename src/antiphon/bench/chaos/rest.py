"""A server at rest: nothing is asked of it, so nothing may be open, and no process may have grown.

In: a server and the engine client of this process. Out: findings in the ledger. Does not know: what happened before.
"""

import asyncio
import time
from collections import Counter

from antiphon.bench.chaos.census import Process, Size, size_of
from antiphon.bench.chaos.ledger import Growth, Ledger
from antiphon.bench.chaos.server import ChaosServer
from antiphon.client.engine_client import EngineClient

_REPORTS_ARE_OLD_S = 2.5
"""The gauges of other processes are up to two reports old."""
_TIMEOUT_S = 20.0
_POLL_S = 0.25


class RestChecker:
    """Owns the sizes of the server's processes at their first and last rest."""

    def __init__(self, server: ChaosServer, client: EngineClient, expected: Counter[str], ledger: Ledger) -> None:
        self._server = server
        self._client = client
        self._expected = expected
        self._ledger = ledger
        self._num_rests = 0
        self._seen: set[Process] = set()
        self._first: dict[Process, Size] = {}
        self._last: dict[Process, Size] = {}

    async def check(self) -> None:
        """Wait until everything is as it should be, and note what is not after 20 s."""
        await asyncio.sleep(_REPORTS_ARE_OLD_S)
        found, deadline_s = self._ledger.findings, time.monotonic() + _TIMEOUT_S
        while True:
            still_open, missing, files = await self._still_open(), self._missing(), self._files_of_the_gone()
            if not (still_open or missing or files) or time.monotonic() > deadline_s:
                break
            await asyncio.sleep(_POLL_S)
        found.still_open += still_open
        found.processes_missing += missing
        found.files_of_the_gone += files
        self._measure()
        self._num_rests += 1
        self._ledger.num_rests += 1

    def report_growth(self) -> None:
        """Put what has grown into the ledger."""
        for process, first in self._first.items():
            last = self._last[process]
            if last is not first:
                growth = Growth(
                    process.name,
                    last.private_bytes - first.private_bytes,
                    last.num_open_files - first.num_open_files,
                    last.num_processes - first.num_processes,
                )
                self._ledger.growths.append(growth)

    async def _still_open(self) -> list[str]:
        try:
            gauges = await self._server.gauges()
            if not await self._server.is_ready():
                return ["/ready says no"]
        except (OSError, TimeoutError) as error:
            return [f"an api-server does not answer: {type(error).__name__} {error}"]
        held = [f"{name} {value:g}" for name, value in sorted(gauges.items())]
        return held + ([f"{self._client.num_open} requests in the library"] if self._client.num_open else [])

    def _missing(self) -> list[str]:
        return [f"{count} of {kind}" for kind, count in self._server.missing(self._expected).items()]

    def _files_of_the_gone(self) -> list[str]:
        return self._server.sockets_of_the_gone({self._client.name})

    def _measure(self) -> None:
        """A process that has come since the last rest may still be warming up; it is measured from the next one on."""
        processes = self._server.processes()
        for process in processes:
            size = size_of(process, len(processes))
            if size is not None and (process in self._seen or self._num_rests == 0):
                self._first.setdefault(process, size)
                self._last[process] = size
            self._seen.add(process)
