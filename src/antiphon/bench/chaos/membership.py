"""Replicas that join a running server and leave it again.

In: Joins and Drains. Out: replicas that come and go, and findings about those that do not. Does not know: requests.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from antiphon.bench.chaos.actions import Drain, Join
from antiphon.bench.chaos.census import Process, is_alive
from antiphon.bench.chaos.ledger import Ledger
from antiphon.bench.chaos.server import JOIN, ChaosServer

_MAX_JOINED = 4
_TIMEOUT_S = 40.0
_POLL_S = 0.1


@dataclass
class Membership:
    """Owns the count of what may not be there any more: `expected` processes of each kind, less those drained."""

    server: ChaosServer
    ledger: Ledger
    clock: Callable[[], float]
    note: Callable[[str], None]
    expected: Counter[str]
    is_ending: bool = False
    _own: dict[str, set[str]] = field(default_factory=dict)
    _leaving: set[Process] = field(default_factory=set)

    def startup(self, stages: tuple[str, ...]) -> None:
        """The server serves: learn which replicas its launcher has started."""
        self._own = {stage: {process.name for process in self.server.named(stage)} for stage in stages}

    async def join(self, join: Join) -> None:
        """Add a replica, unless enough have come; returns when it has joined, or has failed to."""
        if len(self.server.named(JOIN)) >= _MAX_JOINED:
            return self.note(f"nobody joins {join.stage}: enough have")
        began_s = self.clock()
        process = await self.server.spawn(*self._command("--stage", join.stage))
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                said = (await process.stdout.readline()).decode().strip()
        except TimeoutError:
            said = ""
        self.note(said or f"a replica of {join.stage} has not joined")
        if not said and not self._is_excused(join.stage, began_s):
            self.ledger.findings.failed_joins_and_drains.append(
                f"at {began_s:.2f} s: a replica of {join.stage} did not join: exit code {process.returncode}"
            )

    async def drain(self, drain: Drain) -> None:
        """Take a replica out, if one that may go is there; returns when it has gone."""
        victim = self._victim(drain)
        if victim is None:
            return self.note(f"no replica of {drain.stage} can be spared")
        began_s = self.clock()
        self.note(f"drain of {victim.name} {'by signal' if drain.by_signal else 'by command'}")
        if drain.by_signal:
            self.server.signal(victim, signal.SIGTERM)
            problem = "" if await self._goes(victim) else "it did not end"
        else:
            process = await self.server.spawn(*self._command("--drain", victim.name))
            exit_code = await process.wait()
            problem = f"exit code {exit_code}" if exit_code else ""
        if problem and not self._is_excused(victim.name, began_s):
            self.ledger.findings.failed_joins_and_drains.append(
                f"at {began_s:.2f} s: drain of {victim.name}: {problem}"
            )

    def _victim(self, drain: Drain) -> Process | None:
        """Of the launcher's own replicas one stays: it is started again whenever it dies."""
        living, own = self.server.named(drain.stage), self._own[drain.stage]
        may_go = [process for process in living if process.name not in own or len(own) > 1]
        candidates = [process for process in may_go if process not in self._leaving]
        if len(living) < 2 or not candidates:
            return None
        victim = candidates[drain.pick % len(candidates)]
        self._leaving.add(victim)
        if victim.name in own:
            own.discard(victim.name)
            self.expected[drain.stage] -= 1
        return victim

    async def _goes(self, victim: Process) -> bool:
        deadline_s = self.clock() + _TIMEOUT_S
        while is_alive(victim) and self.clock() < deadline_s:
            await asyncio.sleep(_POLL_S)
        return not is_alive(victim)

    def _is_excused(self, name: str, since_s: float) -> bool:
        return self.is_ending or self.ledger.was_killed_since(name, since_s)

    def _command(self, *arguments: str) -> tuple[str, ...]:
        return ("join", "--to", str(self.server.run_directory), *arguments)
