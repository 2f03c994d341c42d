"""One server's life in a chaos run: requests, hits, rests at which everything is counted, and its end.

In: an Episode. Out: what happened, in the ledger and as events. Does not know: what comes before or after.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

import msgspec

from antiphon.bench.chaos.actions import Action, Ask, Door, Drain, Ending, Episode, Hit, How, Join, Round
from antiphon.bench.chaos.answer import Expected
from antiphon.bench.chaos.census import Process, is_alive, shared_files_of
from antiphon.bench.chaos.client import HttpDoor, LibraryDoor, outcome_of
from antiphon.bench.chaos.ledger import Disturbance, Disturbed, Ledger
from antiphon.bench.chaos.membership import Membership
from antiphon.bench.chaos.rest import RestChecker
from antiphon.bench.chaos.server import API_SERVER, ChaosServer, kind_of
from antiphon.client.engine_client import EngineClient
from antiphon.client.factory import make_engine_client
from antiphon.errors import ReplicaDiedError
from antiphon.ids import ORCHESTRATOR
from antiphon.launch.child import bootstrap_of
from antiphon.messages.bootstrap import Bootstrap

LIBRARY = "library/0"
_EXIT_TIMEOUT_S = 25.0
_GONE_TIMEOUT_S = 5.0
_SECOND_TERM_S = 0.5
_POLL_S = 0.1
_EXIT_CODES = {
    Ending.TERM: 0,
    Ending.TERM_TWICE: 0,
    Ending.KILL_LAUNCHER: -signal.SIGKILL,
    Ending.KILL_ORCHESTRATOR: 1,
    Ending.KILL_ALL: -signal.SIGKILL,
}


class Event(msgspec.Struct, frozen=True):
    """Something that happened to a server, in seconds of the run."""

    at_s: float
    what: str


@dataclass
class EpisodeRun:
    """Owns the requests and freezes that are under way; `server` is not started yet."""

    server: ChaosServer
    model: str
    expect: Callable[[Ask], Expected]
    clock: Callable[[], float]
    ledger: Ledger
    events: list[Event]
    expected_processes: Counter[str]
    stages: tuple[str, ...]
    deadline_s: float
    _under_way: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._membership = Membership(self.server, self.ledger, self.clock, self._note, self.expected_processes)

    async def run(self, episode: Episode) -> None:
        """Start the server, play every round, end it; AntiphonError if it does not start."""
        await self.server.start()
        self._note("serves")
        self._membership.startup(self.stages)
        client = await self._library_client()
        rests = RestChecker(self.server, client, self.expected_processes, self.ledger)
        for round_ in episode.rounds[:-1]:
            await self._play(round_, client)
            await self._all_over()
            await rests.check()
            self._note("was at rest")
        await self._play(episode.rounds[-1], client)
        await self._end(episode.ending, client)
        rests.report_growth()

    async def _library_client(self) -> EngineClient:
        """An engine client of this process, from what the launcher has written for an api-server."""
        orchestrator = Bootstrap.read(str(self.server.run_directory / "orchestrator.json"))
        client = make_engine_client(bootstrap_of(orchestrator, LIBRARY))
        await client.startup()
        return client

    async def _play(self, round_: Round, client: EngineClient) -> None:
        """Start every action at its time."""
        began_s = self.clock()
        for action in round_.actions:
            await asyncio.sleep(max(0.0, began_s + action.at_s - self.clock()))
            self._start(self._perform(action, client))
        await asyncio.sleep(max(0.0, began_s + round_.duration_s - self.clock()))

    def _start(self, performing: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(performing)
        self._under_way.add(task)

    async def _all_over(self) -> None:
        """Every request and freeze; what one of them raises is a fault of this program."""
        under_way, self._under_way = self._under_way, set()
        await asyncio.gather(*under_way)

    async def _perform(self, action: Action, client: EngineClient) -> None:
        match action:
            case Ask():
                await self._ask(action, client)
            case Hit():
                await self._hit(action)
            case Join():
                await self._membership.join(action)
            case Drain():
                await self._membership.drain(action)
            case _:
                assert_never(action)

    async def _ask(self, ask: Ask, client: EngineClient) -> None:
        door = (
            LibraryDoor(client)
            if ask.door is Door.LIBRARY
            else HttpDoor(self.server.host, self.server.port, self.model)
        )
        self.ledger.submit(ask)
        stage = ask.fault.removeprefix("exit-in-") if ask.fault.startswith("exit") else ""
        if stage:
            self._disturb(Disturbed.REPLICA, f"{stage}/")
        outcome = await outcome_of(door, ask, self.expect(ask), self.clock, self.deadline_s)
        if stage:
            self._disturb(Disturbed.REPLICA, f"{stage}/")
        self.ledger.outcomes.append(outcome)

    async def _hit(self, hit: Hit) -> None:
        living = self.server.named(hit.kind)
        if not living:
            return self._note(f"{hit.how} to {hit.kind}: none lives")
        victim = living[hit.pick % len(living)]
        self._note(f"{hit.how} to {victim.name or hit.kind}, pid {victim.pid}")
        match hit.how:
            case How.KILL:
                what = Disturbed.API_SERVER if hit.kind == API_SERVER else Disturbed.REPLICA
                self._disturb(what, victim.name.rpartition(" ")[2])
                self.server.signal(victim, signal.SIGKILL)
            case How.TERM:
                self._disturb(Disturbed.DRAINED)
                self.server.signal(victim, signal.SIGTERM)
            case How.FREEZE:
                self.server.signal(victim, signal.SIGSTOP)
                await asyncio.sleep(hit.for_s)
                self.server.signal(victim, signal.SIGCONT)
            case _:
                assert_never(hit.how)

    async def _end(self, ending: Ending, client: EngineClient) -> None:
        """Bring the server down with whatever is in flight, and look for what is left of it.

        If every process was killed, its files are left to the next server's start.
        """
        self._membership.is_ending = True
        everybody = self.server.processes()
        shared = set().union(*(shared_files_of(process) for process in everybody))
        self._note(f"ending: {ending}")
        self._disturb(Disturbed.DRAINED if ending is Ending.TERM else Disturbed.SERVER)
        await self._strike(ending, everybody)
        exit_code = await self.server.wait(_EXIT_TIMEOUT_S)
        if exit_code != _EXIT_CODES[ending]:
            expected = _EXIT_CODES[ending]
            self.ledger.findings.wrong_exits.append(f"{ending}: exit code {exit_code}, expected {expected}")
        client.fail_all(ReplicaDiedError("the server has ended"))
        await self._all_over()
        await client.close()
        await self._look_for_remains(ending, everybody, shared)
        self._note(f"has ended with exit code {exit_code}")

    async def _strike(self, ending: Ending, everybody: list[Process]) -> None:
        launcher = next(process for process in everybody if process.pid == self.server.pid)
        match ending:
            case Ending.TERM:
                self.server.signal(launcher, signal.SIGTERM)
            case Ending.TERM_TWICE:
                self.server.signal(launcher, signal.SIGTERM)
                await asyncio.sleep(_SECOND_TERM_S)
                self.server.signal(launcher, signal.SIGTERM)
            case Ending.KILL_LAUNCHER:
                self.server.signal(launcher, signal.SIGKILL)
            case Ending.KILL_ORCHESTRATOR:
                for process in everybody:
                    if kind_of(process) == ORCHESTRATOR:
                        self.server.signal(process, signal.SIGKILL)
            case Ending.KILL_ALL:
                for process in everybody:
                    self.server.signal(process, signal.SIGKILL)
            case _:
                assert_never(ending)

    async def _look_for_remains(self, ending: Ending, everybody: list[Process], shared: set[str]) -> None:
        found, deadline_s = self.ledger.findings, self.clock() + _GONE_TIMEOUT_S
        while self.clock() < deadline_s:
            left, files = self._left(everybody), [] if ending is Ending.KILL_ALL else self.server.files_left()
            if not left and not files:
                break
            await asyncio.sleep(_POLL_S)
        found.processes_left += [f"{ending}: {p.name or 'unnamed'}, pid {p.pid}" for p in left]
        for process in left:
            self.server.signal(process, signal.SIGKILL)
        remains = [*files, *(path for path in shared if Path(path).exists())]
        found.files_left += [f"{ending}: {path}" for path in remains]

    def _left(self, everybody: list[Process]) -> list[Process]:
        return list({*self.server.processes(), *(process for process in everybody if is_alive(process))})

    def _disturb(self, what: Disturbed, name: str = "") -> None:
        self.ledger.disturbances.append(Disturbance(self.clock(), what, name))

    def _note(self, what: str) -> None:
        self.events.append(Event(round(self.clock(), 3), what))
