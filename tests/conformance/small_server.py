"""A whole server in one process: the real orchestrator, stage loops and engine client, over real channels.

In: a pipeline of row_models, how edges hand off, which connector. Out: requests, and proof that nothing is held.
Does not know: processes. A dead one is a loop that is not stepped any more, closed, and told of as its watch does.
"""

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from antiphon.client.engine_client import EngineClient
from antiphon.client.output_stream import OutputStream
from antiphon.config.deploy import DeployConfig, ServerDeploy
from antiphon.config.pipeline import CLIENT, WHOLE, ChunkPlan, EdgeRule, PipelineSpec, StageSpec, StartWhen
from antiphon.connector.base import Connector
from antiphon.connector.registry import make_connector
from antiphon.errors import AntiphonError
from antiphon.ids import edge_name
from antiphon.messages import codec
from antiphon.messages.bootstrap import Bootstrap
from antiphon.messages.client import Addressed, AudioChunk, ClientFrame, OutputEnd, OutputError, TextDelta
from antiphon.messages.control import (
    AbortRequest,
    Ready,
    RequestAccepted,
    RequestFailed,
    RequestReleased,
    StageEvent,
    StageEventKind,
    StartRequest,
    StatsReport,
    StopRequest,
)
from antiphon.messages.tasks import ChatInput, ChatMessage
from antiphon.monitor.trace import NoTrace
from antiphon.orchestrator.admission import Admission
from antiphon.orchestrator.orchestrator import Orchestrator
from antiphon.orchestrator.process_watch import ProcessWatch
from antiphon.stage.engine.base import StageEngine
from antiphon.stage.engine.generation import GenerationEngine
from antiphon.stage.engine.generation_model import ModelContext
from antiphon.stage.inbox import Inbox
from antiphon.stage.loop import StageLoop
from antiphon.stage.outputs import OutputRouter
from antiphon.stage.report import StatisticsReporter
from antiphon.stage.scheduler.generation import GenerationScheduler
from antiphon.stage.spans import StageSpans
from antiphon.transport.address import RunDirectory
from antiphon.transport.channel import ChannelFullError, GatheringOutlet, Inlet, Outlet
from tests.conformance.row_models import Fault, RowFrontend, RowModel

PATIENCE_S = 10.0
API_SERVER = "api-server/0"
MakeEngine = Callable[[StageSpec], StageEngine]
BY_FOUR = ChunkPlan(1, 4)


@dataclass(frozen=True)
class Settings:
    """How a small server differs from the usual.

    deadline_s: of edges, credit and early chunks. row_width: of the client's rows. replicas: stage -> how many.
    """

    start_when: StartWhen = StartWhen.FIRST_CHUNK
    plan: ChunkPlan = BY_FOUR
    kind: str = "inproc"
    arena_bytes: int = 1 << 18
    row_width: int = 2
    num_rows_per_step: int = 3
    deadline_s: float = 30.0
    output_deadline_s: float = 30.0
    max_backlog_mib: int = 16
    max_inflight: int = 4
    max_num_seqs: int = 32
    replicas: dict[str, int] = field(default_factory=dict)


MODES = {
    "first chunk": Settings(StartWhen.FIRST_CHUNK, BY_FOUR),
    "all chunks": Settings(StartWhen.ALL_CHUNKS, WHOLE),
}
CONNECTORS = {"inproc": 2, "shm": 1024}
"""Connector -> row width: rows of 8 KiB, so that chunks lie in the arena and not beside their headers."""


class RecordingOutlet(GatheringOutlet):
    """A real outlet that also keeps what it sent, and can be full."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[msgspec.Struct] = []
        self.sent_to: list[str] = []
        """Where each of them went."""
        self.is_full = False

    def send(self, address: str, message: msgspec.Struct) -> None:
        if self.is_full:
            raise ChannelFullError(f"{address} does not read")
        if not isinstance(message, StatsReport):
            self.sent.append(message)
            self.sent_to.append(address)
        super().send(address, message)
        self.flush()


class Replica:
    """One stage's process, as far as one thread can have it."""

    def __init__(self, name: str, server: "SmallServer", spec: StageSpec, engine: StageEngine) -> None:
        settings, pipeline, address = server.settings, server.pipeline, server.directory.address
        self.name, self.engine = name, engine
        start = server.next_start()
        self.control = Inlet(address(f"{name}.{start}.control"), codec.TO_REPLICA)
        self.connector = make_connector(
            settings.kind, address(f"{name}.{start}.chunks"), settings.arena_bytes, num_requests=settings.max_inflight
        )
        self.inbox = Inbox(self.connector, early_deadline_s=settings.deadline_s)
        self.client_lane, self.events = RecordingOutlet(), RecordingOutlet()
        out_edges = pipeline.out_edges(spec.name)
        producers = [CLIENT, *(edge.producer for edge in pipeline.edges if edge.consumer == spec.name)]
        names = [edge_name(producer, spec.name) for producer in producers]
        self.router = OutputRouter(
            name,
            spec,
            out_edges,
            dict.fromkeys((edge.name for edge in out_edges), settings.plan),
            self.connector,
            self.client_lane,
            deadlines_s=dict.fromkeys((edge.name for edge in out_edges), settings.deadline_s),
        )
        self.loop = StageLoop(
            name,
            spec,
            {edge: EdgeRule(edge, settings.start_when, settings.deadline_s) for edge in names},
            engine=engine,
            connector=self.connector,
            inbox=self.inbox,
            router=self.router,
            control=self.control,
            events=self.events,
            orchestrator_address=server.inlet.address,
            unhurried_address=server.unhurried.address,
            reporter=StatisticsReporter(
                name, engine, self.connector, self.router.counters, {}, self.events, server.unhurried.address
            ),
            spans=StageSpans(NoTrace(), spec.engine),
            on_joined=lambda: None,
            drain_s=PATIENCE_S,
            turn_s=0.0,
        )
        self.control.startup()
        self.connector.startup()
        self.engine.startup()
        self.events.send(server.inlet.address, Ready(name, self.control.address, self.connector.address))

    def said(self, request_id: str) -> list[StageEventKind]:
        """The kinds of what it has told the orchestrator of a request."""
        return [e.kind for e in self.events.sent if isinstance(e, StageEvent) and e.request_id == request_id]

    def said_to(self, request_id: str) -> list[str]:
        """At which addresses it has told the orchestrator of a request."""
        events = zip(self.events.sent, self.events.sent_to, strict=True)
        return [to for e, to in events if isinstance(e, StageEvent) and e.request_id == request_id]

    def events_of(self, request_id: str) -> list[tuple[str, int, StageEventKind]]:
        """The same, as replica, epoch, kind."""
        events = [event for event in self.events.sent if isinstance(event, StageEvent)]
        return [(self.name, event.epoch, event.kind) for event in events if event.request_id == request_id]

    def client_ends(self, request_id: str) -> list[tuple[str, int]]:
        """Replica and epoch of each last message it has sent to the client of a request."""
        told = self.outputs_of(request_id)
        return [(self.name, a.epoch) for a in told for said in a.outputs if isinstance(said, OutputEnd | OutputError)]

    def outputs_of(self, request_id: str) -> list[Addressed]:
        """What it has sent to the client of a request."""
        frames = [frame for frame in self.client_lane.sent if isinstance(frame, ClientFrame)]
        return [sent for frame in frames for sent in frame.addressed if sent.request_id == request_id]

    def held(self) -> list[str]:
        """What it still has of any request; empty when idle."""
        engine, connector = self.engine.statistics(), self.connector.statistics()
        counts = {
            "chunks or requests in the inbox": self.inbox.num_held(),
            "leases": connector.num_leases,
            "arena bytes": connector.arena_used_bytes,
            "open routes": len(self.router.flush()),
            "requests in the engine": engine.num_running + engine.num_waiting + self.engine.has_work(),
        }
        return [f"{self.name}: {count} {what}" for what, count in counts.items() if count]

    def close(self) -> None:
        self.engine.close()
        for owner in (self.control, self.connector, self.events, self.client_lane):
            owner.close()


@dataclass
class Heard:
    """What the client of one request has got so far, by stage, and how it ended (None: not yet)."""

    stream: OutputStream
    values: dict[str, list[int]] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)
    outcome: AntiphonError | str | None = None
    reader: asyncio.Task[None] | None = None

    async def read(self) -> None:
        """To the end, one message after the other."""
        try:
            async for message in self.stream:
                match message.output:
                    case TextDelta(text=text):
                        self.values.setdefault(message.stage, []).extend(map(int, text.split()))
                    case AudioChunk(pcm=pcm):
                        self.values.setdefault(message.stage, []).extend(np.frombuffer(pcm, np.int16).tolist())
                    case OutputEnd(finish_reason=reason):
                        assert reason == "stop"
                        self.ends[message.stage] += 1
                    case other:
                        raise AssertionError(other)
            self.outcome = "finished"
        except AntiphonError as error:
            self.outcome = error


class SmallServer:
    """Owns every part of it. Nothing moves but in `turn`."""

    def __init__(self, pipeline: PipelineSpec, settings: Settings, engines: dict[str, MakeEngine]) -> None:
        self.pipeline, self.settings, self._engines = pipeline, settings, engines
        self.directory = RunDirectory.create()
        self.faults: dict[str, dict[str, Fault]] = {stage.name: {} for stage in pipeline.stages}
        self.inlet = Inlet(self.directory.address("orchestrator"), codec.TO_ORCHESTRATOR)
        self.unhurried = Inlet(self.directory.address("orchestrator.unhurried"), codec.TO_ORCHESTRATOR)
        self.outlet = RecordingOutlet()
        self.watch = ProcessWatch()
        self.orchestrator = Orchestrator(
            pipeline,
            Admission(max_inflight=settings.max_inflight, max_queue=64),
            self.outlet,
            self.watch,
            release_deadline_s=PATIENCE_S,
        )
        self.other_api_server = Outlet()
        self.replicas: dict[str, Replica] = {}
        self.paused: set[str] = set()
        self.heard: dict[str, Heard] = {}
        self.num_handled = 0
        self._ids, self._starts = itertools.count(1), itertools.count()
        self.connector = self._connector(f"{API_SERVER}.chunks")
        self.client = self._make_client()

    async def startup(self) -> None:
        self.inlet.startup()
        self.unhurried.startup()
        await self.client.startup()
        for stage in self.pipeline.stages:
            for index in range(self.settings.replicas.get(stage.name, 1)):
                self.start_replica(f"{stage.name}/{index}")
        await self.until_ready()

    async def until_ready(self) -> None:
        """Until every stage has a replica, as far as the api-server knows."""

        def is_ready() -> bool:
            self.orchestrator.report()
            return all(self.client.live_replicas().values())

        await self.until(is_ready, "every stage has a replica")

    def next_start(self) -> int:
        """Every start of a process has addresses of its own."""
        return next(self._starts)

    def start_replica(self, name: str) -> Replica:
        """A process of that name begins, or another begins in its place."""
        spec = replace(self.pipeline.stage(name.partition("/")[0]), max_num_seqs=self.settings.max_num_seqs)
        made = self.replicas[name] = Replica(name, self, spec, self._engine(spec))
        return made

    def kill(self, name: str) -> None:
        """The process is gone at once, and the orchestrator hears of it."""
        self.replicas.pop(name).close()
        self.orchestrator.process_ended(name, reason="signal 9")

    def has_died(self, name: str) -> bool:
        """True when the api-server knows that the pools have no replica of that name."""
        self.orchestrator.report()
        bound = [dict(counter.labels) for counter in self.client.counters() if counter.name == "replica_inflight"]
        return all(labels["replica"] != name for labels in bound)

    async def submit(self, values: list[int], request_id: str = "") -> str:
        """Start a request and read its outputs as they come; gives its id. Raises what `EngineClient.submit` does."""
        name = request_id or f"req-{next(self._ids)}"
        wanted = ChatInput((ChatMessage("user", " ".join(map(str, values))),))
        submitted = asyncio.create_task(self.client.submit(wanted, request_id=name))
        try:
            await self.until(submitted.done, f"{name} is bound")
        finally:
            submitted.cancel()  # does nothing, unless who waits here is cancelled
        heard = self.heard[name] = Heard(submitted.result())
        heard.reader = asyncio.create_task(heard.read())
        return name

    async def disconnect(self, request_id: str) -> None:
        """The client goes away in the middle of its answer."""
        heard = self.heard[request_id]
        assert heard.reader is not None
        heard.reader.cancel()
        await asyncio.gather(heard.reader, return_exceptions=True)
        await heard.stream.aclose()
        heard.outcome = heard.outcome or "disconnected"

    def abort(self, request_id: str) -> None:
        """As an API does that does not own the stream."""
        self.other_api_server.send(self.inlet.address, AbortRequest(request_id, "somebody asked for it"))

    def hold(self, request_id: str) -> None:
        """The stages make no more of a request; so it does not end before they hear that they shall stop it."""
        for faults in self.faults.values():
            faults[request_id] = Fault.HOLD

    def is_stopped(self, request_id: str) -> bool:
        """True when the stages have been told to stop it; they may not have heard it yet."""
        return any(isinstance(said, StopRequest) and said.request_id == request_id for said in self.outlet.sent)

    def replica_of(self, request_id: str, stage: str) -> str:
        """The replica of `stage` that a request is bound to."""
        starts = (said for said in self.outlet.sent if isinstance(said, StartRequest) and said.request_id == request_id)
        peers = (peer.replica for start in starts for peer in start.consumers)
        return next(replica for replica in peers if replica.startswith(f"{stage}/"))

    async def turn(self) -> None:
        """Each loop once, in the order of the stages, then the client."""
        for message in (*self.unhurried.receive(), *self.inlet.receive()):
            self.orchestrator.handle(message)
            self.num_handled += isinstance(message, StageEvent)
        for name, stage in list(self.replicas.items()):
            if name not in self.paused:
                stage.loop.step()
        await asyncio.sleep(0)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Take turns until `condition`."""
        give_up_s = asyncio.get_running_loop().time() + PATIENCE_S
        while not condition():
            assert asyncio.get_running_loop().time() < give_up_s, f"waited for ever until {what}; {self.held()}"
            await self.turn()

    async def hold_still(self) -> None:
        """Pause every stage, until the orchestrator and the client know all that they have said."""
        self.paused |= set(self.replicas)
        sent = [message for stage in self.replicas.values() for message in stage.events.sent]
        num_said = sum(isinstance(message, StageEvent) for message in sent)
        await self.until(lambda: self.num_handled == num_said, "the orchestrator knows everything")
        spoken = {name for name in self.heard if any(stage.outputs_of(name) for stage in self.replicas.values())}
        await self.until(lambda: all(self.heard[i].stream.has_output for i in spoken), "clients have what was sent")

    async def until_over(self, *request_ids: str) -> None:
        """Until the clients know how their requests ended."""
        await self.until(lambda: all(self.heard[i].outcome is not None for i in request_ids), f"{request_ids} end")

    def at(self, stage: str) -> Replica:
        return self.replicas[f"{stage}/0"]

    async def assert_idle(self) -> None:
        """Every part lets go of everything, every request has been released once by all and ended once per lane."""
        await self.until(lambda: not self.held(), "nothing is held")
        for _ in range(3):
            await self.turn()
        assert self.held() == []
        told = Counter((type(said), said.request_id) for said in self.outlet.sent if isinstance(said, _ANSWERS))
        for name in self.heard:
            num_starts = told[RequestAccepted, name]
            assert told[RequestReleased, name] == num_starts, "each start is released once"
            assert told[RequestFailed, name] <= num_starts
            said = Counter(event for stage in self.replicas.values() for event in stage.events_of(name))
            assert max(said.values(), default=0) <= 1, said
            ends = Counter(end for stage in self.replicas.values() for end in stage.client_ends(name))
            assert max(ends.values(), default=0) <= 1, ends

    def held(self) -> list[str]:
        """What any live process still has of any request."""
        found = [thing for stage in self.replicas.values() for thing in stage.held()]
        statistics = self.connector.statistics()
        counts = {
            "orchestrator: open requests": self.orchestrator.num_open,
            "client: open requests": self.client.num_open,
            "client: leases": statistics.num_leases,
            "client: arena bytes": statistics.arena_used_bytes,
            "client: backlog bytes": self._counted("client_backlog_bytes"),
            "pools: bound requests": self._counted("replica_inflight"),
            "admission: requests in flight": self._counted("requests_inflight"),
        }
        return found + [f"{count} {what}" for what, count in counts.items() if count]

    async def close(self) -> None:
        readers = [heard.reader for heard in self.heard.values() if heard.reader is not None]
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await self.client.close()
        for stage in self.replicas.values():
            stage.close()
        for owner in (self.inlet, self.unhurried, self.outlet, self.other_api_server, self.watch):
            owner.close()
        self.directory.remove()

    def _counted(self, name: str) -> float:
        self.orchestrator.report()
        return sum(counter.value for counter in self.client.counters() if counter.name == name)

    def _engine(self, spec: StageSpec) -> StageEngine:
        if spec.name in self._engines:
            return self._engines[spec.name](spec)
        scheduler = GenerationScheduler(max_num_seqs=spec.max_num_seqs, max_batch_size=spec.max_batch_size)
        return GenerationEngine(
            RowModel(spec, self.faults[spec.name], self.settings.num_rows_per_step),
            ModelContext("cpu", 1, "", ""),
            scheduler,
        )

    def _connector(self, name: str) -> Connector:
        settings, address = self.settings, self.directory.address(name)
        return make_connector(settings.kind, address, settings.arena_bytes, num_requests=settings.max_inflight)

    def _make_client(self) -> EngineClient:
        address, settings = self.directory.address, self.settings
        server = ServerDeploy(
            output_deadline_s=settings.output_deadline_s, max_client_backlog_mib=settings.max_backlog_mib
        )
        bootstrap = Bootstrap(
            name=API_SERVER,
            pipeline="",
            config=DeployConfig(server=server),
            run_directory=str(self.directory.path),
            orchestrator_address=self.inlet.address,
            unhurried_address=self.unhurried.address,
            control_address=address(f"{API_SERVER}.control"),
            connector_address=self.connector.address,
            client_address=address(f"{API_SERVER}.client"),
        )
        frontend = RowFrontend(frozenset(self.pipeline.tasks[0].finals), settings.row_width)
        return EngineClient(API_SERVER, self.pipeline, frontend, self.connector, bootstrap)


_ANSWERS = RequestAccepted | RequestFailed | RequestReleased


@asynccontextmanager
async def small_server(
    pipeline: PipelineSpec, settings: Settings, engines: dict[str, MakeEngine] | None = None
) -> AsyncIterator[SmallServer]:
    """A started server that is closed at the end; it leaves no descriptor open."""
    server = SmallServer(pipeline, settings, engines or {})
    num_before = num_descriptors()
    try:
        await server.startup()
        yield server
    finally:
        await server.close()
    give_up_s = asyncio.get_running_loop().time() + PATIENCE_S
    while num_descriptors() > num_before:
        assert asyncio.get_running_loop().time() < give_up_s, f"{num_descriptors() - num_before} descriptors are left"
        await asyncio.sleep(0.001)


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
