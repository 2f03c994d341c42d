"""What a crowd leaves in a server at rest: open requests, leases, backlog; memory and files of every process.

In: a server. Out: what it holds, how its processes have grown. Does not know: what was asked of it.
"""

import asyncio
import time
from dataclasses import dataclass

from antiphon.bench.chaos.census import Process, Size, size_of
from antiphon.bench.chaos.server import ChaosServer

_REPORTS_ARE_OLD_S = 2.5
"""The gauges of other processes are up to two reports old."""
_TIMEOUT_S = 20.0
_POLL_S = 0.25


@dataclass(frozen=True)
class Growth:
    """How much larger a process is than it was: private memory, open files."""

    process: str
    num_bytes: int
    num_files: int


async def held_at_rest(server: ChaosServer) -> dict[str, float]:
    """Gauges that are not 0 though nothing is asked: empty as soon as all are, else what is left after 20 s."""
    await asyncio.sleep(_REPORTS_ARE_OLD_S)
    deadline_s = time.monotonic() + _TIMEOUT_S
    while (held := await server.gauges()) and time.monotonic() < deadline_s:
        await asyncio.sleep(_POLL_S)
    return held


def sizes_of(server: ChaosServer) -> dict[Process, Size]:
    """Every process that lives."""
    processes = server.processes()
    found = {process: size_of(process, len(processes)) for process in processes}
    return {process: size for process, size in found.items() if size is not None}


def growths(before: dict[Process, Size], after: dict[Process, Size]) -> tuple[Growth, ...]:
    """Of the processes that were there at both times, in order of their names."""
    both = sorted((process for process in before if process in after), key=lambda process: process.name)
    return tuple(
        Growth(
            process.name,
            after[process].private_bytes - before[process].private_bytes,
            after[process].num_open_files - before[process].num_open_files,
        )
        for process in both
    )
