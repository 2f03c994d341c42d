"""`bench clients`: many streams at once, of which some clients vanish and some read slowly, against the same streams
without those. Each round has both, on one server, in turns.

In: a pipeline, a CrowdSettings. Out: a CrowdReport. Does not know: how it is shown.
"""

import asyncio
import itertools
import shutil
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import assert_never

import msgspec
import uvloop

from antiphon.bench.chaos.census import Process, Size
from antiphon.bench.chaos.server import LAUNCHER, ChaosServer
from antiphon.bench.clients.crowd import Guest, Manner, Shares, make_crowd
from antiphon.bench.clients.left import Growth, growths, held_at_rest, sizes_of
from antiphon.bench.measures import percentile
from antiphon.bench.report import Json, fingerprint
from antiphon.bench.serve.arrivals import Load
from antiphon.bench.serve.dataset import TokenRange
from antiphon.bench.serve.expected import checker_of
from antiphon.bench.serve.messages import Ask, Plan, Record, Task
from antiphon.bench.serve.metrics import Lateness
from antiphon.bench.serve.probe import ServerAddress
from antiphon.bench.serve.run import GeneratorProcess, ServeSettings, checked, make_plan
from antiphon.config.pipeline import PipelineSpec
from antiphon.errors import AntiphonError, StageError
from antiphon.models.registry import load_pipeline

_ARRIVALS_PER_S = 100.0
_QUESTION, _ANSWER = TokenRange(20, 20), TokenRange(200, 400)
_SLOWNESS = 2.0
"""Who reads slowly takes so many times as long as the answer takes to be made."""
_GAP_PERCENT = 99
_STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class CrowdSettings:
    """How many clients, of which manners, how often; what they ask. server: its settings."""

    num_clients: int = 200
    shares: Shares = field(default_factory=Shares)
    num_rounds: int = 3
    seed: int = 0
    task: Task = Task.CHAT
    input_tokens: TokenRange = _QUESTION
    output_tokens: TokenRange = _ANSWER
    server: tuple[str, ...] = ()
    max_lag_s: float = 0.02


@dataclass(frozen=True)
class Visit:
    """One run of clients. gaps_s: between the pieces that came to those who read as they should, all of them."""

    num_clients: int
    num_left: int
    gaps_s: list[float]
    failures: tuple[str, ...]

    def gap_s(self, percent: float) -> float:
        """A percentile of the gaps."""
        return percentile(self.gaps_s, percent)


@dataclass(frozen=True)
class Round:
    """The well-behaved alone, and the same ones in the whole crowd."""

    alone: Visit
    crowded: Visit

    @property
    def ratio(self) -> float:
        """Of the p99 gaps."""
        return self.crowded.gap_s(_GAP_PERCENT) / self.alone.gap_s(_GAP_PERCENT)


@dataclass(frozen=True)
class CrowdReport:
    """What was measured, and what was left afterwards: gauges that are not 0, growth since the warm-up's end.

    log: what the server has written.
    """

    settings: CrowdSettings
    rounds: tuple[Round, ...]
    held: dict[str, float]
    growths: tuple[Growth, ...]
    log: Path
    environment: Json

    @property
    def failures(self) -> list[str]:
        """Of those who stayed: whose answer is not whole, or not the right one."""
        return [line for each in self.rounds for line in (*each.alone.failures, *each.crowded.failures)]

    @property
    def is_clean(self) -> bool:
        """True if every answer came to its end and nothing is held; times and growth are for the reader to judge."""
        return not (self.failures or self.held)


def run_clients(pipeline: str, settings: CrowdSettings, say: Callable[[str], None]) -> CrowdReport:
    """Serve the pipeline and run every round; StageError if the load generator was the bottleneck.

    The log stays if anything went wrong.
    """
    directory = Path(tempfile.mkdtemp(prefix="clients-"))
    log = directory / "server.log"
    try:
        report = uvloop.run(_run(pipeline, settings, log, say))
    except AntiphonError:
        say(f"the server's log is {log}")
        raise
    if report.is_clean:
        shutil.rmtree(directory)
    return report


async def _run(pipeline: str, settings: CrowdSettings, log: Path, say: Callable[[str], None]) -> CrowdReport:
    environment, spec = fingerprint(), load_pipeline(pipeline)
    runtime_dir = log.parent / "run"
    runtime_dir.mkdir()
    with log.open("ab") as file:
        server = ChaosServer(pipeline, (*_room_for_all(spec, settings), *settings.server), runtime_dir, file)
        await server.start()
        try:
            bench = ClientsBench(spec, server, settings, say)
            before = await bench.warm_up()
            rounds = [await bench.round(number) for number in range(settings.num_rounds)]
            held = await held_at_rest(server)
            grown = growths(before, sizes_of(server))
        finally:
            await _stop(server)
    return CrowdReport(settings, tuple(rounds), held, grown, log, environment)


async def _stop(server: ChaosServer) -> None:
    for launcher in server.named(LAUNCHER):
        server.signal(launcher, signal.SIGTERM)
    if await server.wait(_STOP_TIMEOUT_S) is None:
        raise StageError(f"the server (process {server.pid}) did not end in {_STOP_TIMEOUT_S:g} s")


def _room_for_all(spec: PipelineSpec, settings: CrowdSettings) -> tuple[str, ...]:
    """No client waits for another's end: what is measured is how they share a server."""
    tight = (stage.name for stage in spec.stages if stage.max_num_seqs < settings.num_clients)
    room = tuple(f"stages.{name}.max_num_seqs={settings.num_clients}" for name in tight)
    return (f"admission.max_inflight={settings.num_clients}", *room)


class ClientsBench:
    """Owns what every run of clients shares: the questions, the crowd, and how long and large a usual answer is."""

    def __init__(
        self, spec: PipelineSpec, server: ChaosServer, settings: CrowdSettings, say: Callable[[str], None]
    ) -> None:
        self._server = server
        self._settings = settings
        self._say = say
        self._checker = checker_of(spec)
        self._asked = ServeSettings(
            Load(_ARRIVALS_PER_S, seed=settings.seed),
            settings.num_clients,
            settings.task,
            num_warmups=0,
            input_tokens=settings.input_tokens,
            output_tokens=settings.output_tokens,
        )
        self._plan = make_plan(ServerAddress(server.host, server.port), spec, self._checker, self._asked)
        self._crowd = make_crowd(settings.num_clients, settings.shares, settings.seed)
        self._usual_s = self._usual_bytes = 0.0

    async def warm_up(self) -> dict[Process, Size]:
        """A round that is not kept; gives the sizes of the server's processes after it."""
        self._say("warm-up")
        records = await self._visit(only=Manner.READ)
        good = [record for record in records if not record.error]
        if not good:
            raise StageError(f"all {len(records)} requests of the warm-up failed; the first: {records[0].error}")
        self._usual_s = median(record.end_s - record.sent_s for record in good)
        self._usual_bytes = median(record.num_bytes for record in good)
        await self._visit()
        if held := await held_at_rest(self._server):
            raise StageError(f"after the warm-up the server holds {held}")
        return sizes_of(self._server)

    async def round(self, number: int) -> Round:
        """Both runs, in turns: one round begins with the well-behaved alone, the next with the crowd."""
        self._say(f"round {number + 1} of {self._settings.num_rounds}")
        if number % 2:
            crowded = self._measured(await self._visit())
            return Round(self._measured(await self._visit(only=Manner.READ)), crowded)
        alone = self._measured(await self._visit(only=Manner.READ))
        return Round(alone, self._measured(await self._visit()))

    async def _visit(self, only: Manner | None = None) -> list[Record]:
        guests = zip(self._plan.asks, self._crowd, strict=True)
        asks = tuple(self._as_guest(ask, guest) for ask, guest in guests if only in (None, guest.manner))
        return await asyncio.to_thread(self._send, msgspec.structs.replace(self._plan, asks=asks))

    def _as_guest(self, ask: Ask, guest: Guest) -> Ask:
        match guest.manner:
            case Manner.READ:
                return ask
            case Manner.LEAVE:
                return msgspec.structs.replace(ask, leaves_after_s=guest.leaves_at * self._usual_s)
            case Manner.DAWDLE:
                return msgspec.structs.replace(ask, bytes_per_s=self._usual_bytes / self._usual_s / _SLOWNESS)
            case _:
                assert_never(guest.manner)

    def _send(self, plan: Plan) -> list[Record]:
        with GeneratorProcess(plan) as generator:
            generator.warm_up()
            result = generator.run(lambda _: None)
        if problem := Lateness.of(result).problem(self._settings.max_lag_s):
            raise StageError(problem)
        return (checked(result, plan, self._checker, self._asked) if self._checker is not None else result).records

    def _measured(self, records: list[Record]) -> Visit:
        stayed = [record for record in records if not record.has_left]
        failed = [record for record in stayed if record.error or record.is_wrong]
        well_behaved = [record for record in stayed if self._crowd[record.number].manner is Manner.READ]
        return Visit(
            len(records),
            len(records) - len(stayed),
            [gap_s for record in well_behaved for gap_s in gaps_s(record)],
            tuple(
                f"client {record.number} ({self._crowd[record.number].manner}): {record.error or 'a wrong answer'}"
                for record in failed
            ),
        )


def gaps_s(record: Record) -> list[float]:
    """Between the pieces that came to one client; what came in one read is one piece."""
    times_s = sorted({*record.text_s, *record.audio_s})
    return [later_s - earlier_s for earlier_s, later_s in itertools.pairwise(times_s)]
