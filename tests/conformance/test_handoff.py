"""Two stage loops, one edge: every way a request can go, in every way an edge can hand off."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from antiphon.config.pipeline import WHOLE, ChunkPlan, EdgeRule, EdgeSpec, StageSpec, StartWhen
from antiphon.connector.cursor import EdgeCursor, EdgeTarget
from antiphon.connector.inproc import InprocConnector
from antiphon.messages.client import ClientFrame, OutputEnd, OutputError, TextDelta
from antiphon.messages.control import Peer, StageEvent, StageEventKind, StartRequest, StopRequest
from antiphon.messages.error_info import ErrorInfo
from antiphon.messages.params import RequestParams
from antiphon.models.simulated.pipeline import DECODER, ENCODER, PIPELINE
from antiphon.models.simulated.relay import Decoder, Encoder
from antiphon.stage.engine.generation import GenerationEngine
from antiphon.stage.engine.generation_model import GenerationModel, ModelContext
from antiphon.stage.inbox import Inbox
from antiphon.stage.loop import StageLoop
from antiphon.stage.outputs import OutputRouter
from antiphon.stage.scheduler.generation import GenerationScheduler

(EDGE,) = PIPELINE.edges
ENTRY = "client->encoder"
TEXT = "Nothing is lost, doubled or swapped: ünïcödé."
MODES = {
    "first chunk": (StartWhen.FIRST_CHUNK, ChunkPlan(1, 4)),
    "all chunks": (StartWhen.ALL_CHUNKS, ChunkPlan(1, 4)),
    "whole": (StartWhen.ALL_CHUNKS, WHOLE),
}
MAX_STEPS = 3000
_numbers = itertools.count()


class ListOutlet:
    """An outlet that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[msgspec.Struct] = []

    def send(self, address: str, message: msgspec.Struct) -> None:
        self.sent.append(message)

    def forget(self, address: str) -> None:
        raise AssertionError(f"{address} was forgotten")


class ListInlet:
    """An inlet that gives what was put in it."""

    def __init__(self) -> None:
        self.waiting: list[StartRequest | StopRequest] = []

    def receive(self) -> list[StartRequest | StopRequest]:
        received, self.waiting = self.waiting, []
        return received


class NoReporter:
    def report_if_due(self, num_bound: int) -> None:
        """Nobody reads it here."""


class Replica:
    """One stage: a loop and everything it owns, with lists in place of the control and client lanes."""

    def __init__(
        self,
        spec: StageSpec,
        model: GenerationModel,
        rules: dict[str, EdgeRule],
        out_edges: tuple[EdgeSpec, ...],
        plan: ChunkPlan,
        arena_bytes: int,
    ) -> None:
        self.name = f"{spec.name}/0"
        self.connector = InprocConnector(f"handoff-{self.name}-{next(_numbers)}", arena_bytes=arena_bytes)
        self.connector.startup()
        scheduler = GenerationScheduler(max_num_seqs=spec.max_num_seqs, max_batch_size=spec.max_batch_size)
        self.engine = GenerationEngine(model, ModelContext("cpu", 1, "", ""), scheduler)
        self.inbox = Inbox(self.connector, early_deadline_s=30.0)
        self.client, self.events, self.control = ListOutlet(), ListOutlet(), ListInlet()
        plans = {edge.name: plan for edge in out_edges}
        deadlines_s = dict.fromkeys(plans, 30.0)
        self.router = OutputRouter(
            self.name, spec, out_edges, plans, self.connector, self.client, deadlines_s=deadlines_s
        )
        self.loop = StageLoop(
            self.name,
            spec,
            rules,
            engine=self.engine,
            connector=self.connector,
            inbox=self.inbox,
            router=self.router,
            control=self.control,
            events=self.events,
            orchestrator_address="orchestrator",
            reporter=NoReporter(),
            on_joined=lambda: None,
            drain_s=0.0,
        )

    def kinds(self, request_id: str) -> list[str]:
        """What the replica has told the orchestrator of a request, in order."""
        return [event.kind for event in self.events.sent if event.request_id == request_id]

    def assert_idle(self) -> None:
        self.connector.get()
        statistics = self.engine.statistics()
        assert self.inbox.num_held() == 0
        assert self.connector.statistics().num_leases == 0
        assert self.router.flush() == {}
        assert (statistics.num_running, statistics.num_waiting, self.engine.has_work()) == (0, 0, False)


class Relay:
    """encoder/0 and decoder/0, a client that sends input, and as much of an orchestrator as they need."""

    def __init__(
        self, start_when: StartWhen, plan: ChunkPlan, *, arena_bytes: int = 1 << 20, decoder: StageSpec = DECODER
    ) -> None:
        entry_rule = {ENTRY: EdgeRule(ENTRY, StartWhen.ALL_CHUNKS, 30.0)}
        edge_rule = {EDGE.name: EdgeRule(EDGE.name, start_when, 30.0)}
        self.encoder = Replica(ENCODER, Encoder(), entry_rule, (EDGE,), plan, arena_bytes)
        self.decoder = Replica(decoder, Decoder(), edge_rule, (), plan, arena_bytes)
        self.sender = InprocConnector(f"handoff-client-{next(_numbers)}", arena_bytes=1 << 20)
        self.sender.startup()
        self._num_events_seen = Counter[str]()

    @property
    def replicas(self) -> tuple[Replica, Replica]:
        return self.encoder, self.decoder

    def start(self, request_id: str = "req-1") -> None:
        parts = (request_id, 0, "chat", RequestParams())
        to_decoder = Peer(EDGE.name, self.decoder.name, self.decoder.connector.address)
        to_encoder = Peer(EDGE.name, self.encoder.name, self.encoder.connector.address)
        entry = Peer(ENTRY, "api-server/0", self.sender.address)
        self.encoder.control.waiting.append(StartRequest(*parts, (entry,), (to_decoder,), ""))
        self.decoder.control.waiting.append(StartRequest(*parts, (to_encoder,), (), "ipc://api"))

    def send(self, text: str, command: str = "", request_id: str = "req-1") -> None:
        address = self.encoder.connector.address
        target = EdgeTarget(request_id, 0, ENTRY, "api-server/0", address, ChunkPlan(1, 1))
        cursor = EdgeCursor(target, self.sender.max_chunk_bytes)
        rows, whole = (np.frombuffer(part.encode(), np.uint8) for part in (text, command))
        cursor.append({"text": rows}, {"command": whole})
        cursor.finish()
        assert cursor.flush(self.sender)

    def stop(self, request_id: str, *replicas: Replica, error: ErrorInfo | None = None) -> None:
        for replica in replicas:
            replica.control.waiting.append(StopRequest(request_id, 0, "its client has gone", error))

    def step(self) -> None:
        """One turn of both loops; what one replica failed is stopped in the other, as an orchestrator does."""
        for replica in self.replicas:
            replica.loop.step()
            (other,) = (peer for peer in self.replicas if peer is not replica)
            for event in replica.events.sent[self._num_events_seen[replica.name] :]:
                assert isinstance(event, StageEvent)
                if event.kind == StageEventKind.FAILED:
                    self.stop(event.request_id, other, error=event.error)
            self._num_events_seen[replica.name] = len(replica.events.sent)

    def run_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(MAX_STEPS):
            if condition():
                return
            self.step()
        raise AssertionError("the relay stands still")

    def run_to_release(self, *request_ids: str) -> None:
        """Until both replicas have released the requests, and some turns more."""
        self.run_until(
            lambda: all(StageEventKind.RELEASED in replica.kinds(i) for replica in self.replicas for i in request_ids)
        )
        for _ in range(3):
            self.step()

    def told(self, request_id: str = "req-1") -> tuple[str, OutputEnd | OutputError]:
        """The text the client has got, and the one message that ended it."""
        outputs = []
        for frame in self.decoder.client.sent:
            assert isinstance(frame, ClientFrame)
            outputs += [addressed.output for addressed in frame.outputs if addressed.request_id == request_id]
        *deltas, end = outputs
        assert all(isinstance(delta, TextDelta) for delta in deltas), outputs
        assert isinstance(end, OutputEnd | OutputError)
        return "".join(delta.text for delta in deltas), end

    def assert_over(self, *request_ids: str) -> None:
        """Each event once, `released` last, and nothing held anywhere."""
        assert self.encoder.client.sent == []
        for replica in self.replicas:
            for request_id in request_ids:
                kinds = replica.kinds(request_id)
                assert len(kinds) == len(set(kinds)), kinds
                assert kinds[-1] == StageEventKind.RELEASED
            replica.assert_idle()
        self.sender.get()
        assert self.sender.statistics().num_leases == 0

    def close(self) -> None:
        for connector in (self.encoder.connector, self.decoder.connector, self.sender):
            connector.close()


@pytest.fixture(params=MODES)
def relay(request: pytest.FixtureRequest) -> Iterator[Relay]:
    made = Relay(*MODES[request.param])
    yield made
    made.close()


def test_a_request_finishes_with_every_row_once_and_in_order(relay: Relay) -> None:
    relay.start()
    relay.send(TEXT)
    relay.run_to_release("req-1")
    text, end = relay.told()
    assert text == TEXT
    assert isinstance(end, OutputEnd) and end.usage.num_output_tokens == len(TEXT.encode())
    for replica in relay.replicas:
        assert replica.kinds("req-1") == [StageEventKind.FIRST_OUTPUT, StageEventKind.RELEASED]
    relay.assert_over("req-1")


def test_input_that_comes_before_the_request_is_started_is_served_the_same(relay: Relay) -> None:
    relay.send(TEXT)
    relay.step()
    relay.start()
    relay.run_to_release("req-1")
    assert relay.told()[0] == TEXT
    relay.assert_over("req-1")


def test_a_request_that_makes_no_output_still_ends_in_every_lane(relay: Relay) -> None:
    relay.start()
    relay.send(TEXT, "empty")
    relay.run_to_release("req-1")
    assert relay.told() == ("", OutputEnd())
    for replica in relay.replicas:
        assert replica.kinds("req-1") == [StageEventKind.RELEASED]
    relay.assert_over("req-1")


def test_an_abort_before_the_input_has_come_ends_everything(relay: Relay) -> None:
    relay.start()
    relay.step()
    relay.stop("req-1", *relay.replicas)
    relay.run_to_release("req-1")
    text, end = relay.told()
    assert text == ""
    assert isinstance(end, OutputError) and end.error.kind == "RequestAbortedError"
    relay.send(TEXT)  # what comes late is given back
    relay.step()
    for replica in relay.replicas:
        assert replica.kinds("req-1") == [StageEventKind.RELEASED]
    relay.assert_over("req-1")


@pytest.mark.parametrize("first_stopped", ["encoder", "decoder"])
def test_an_abort_in_mid_way_releases_both_sides_whoever_hears_it_first(relay: Relay, first_stopped: str) -> None:
    relay.start()
    relay.send(TEXT)
    relay.run_until(lambda: StageEventKind.FIRST_OUTPUT in relay.encoder.kinds("req-1"))
    relay.step()
    replicas = relay.replicas if first_stopped == "encoder" else relay.replicas[::-1]
    relay.stop("req-1", replicas[0])
    relay.step()
    relay.stop("req-1", replicas[1])
    relay.run_to_release("req-1")
    text, end = relay.told()
    assert TEXT.startswith(text) and text != TEXT
    assert isinstance(end, OutputError) and end.error.kind == "RequestAbortedError"
    relay.assert_over("req-1")


@pytest.mark.parametrize(
    ("command", "guilty", "kind", "message"),
    [
        ("raise-in-first", "encoder", "StageError", "the model raised RuntimeError: the encoder was told to raise"),
        ("raise-in-second", "decoder", "StageError", "the model raised RuntimeError: the decoder was told to raise"),
        ("undeclared", "encoder", "UndeclaredOutputError", "'surprise', which it does not declare; it declares rows"),
    ],
)
def test_a_fault_ends_its_request_everywhere_with_the_real_error_and_no_other_request(
    relay: Relay, command: str, guilty: str, kind: str, message: str
) -> None:
    for request_id, text_command in (("req-1", command), ("req-2", "")):
        relay.start(request_id)
        relay.send(TEXT, text_command, request_id)
    relay.run_to_release("req-1", "req-2")
    text, end = relay.told("req-1")
    assert TEXT.startswith(text) and text != TEXT
    assert isinstance(end, OutputError)
    assert end.error.kind == kind
    assert message in end.error.message
    failed = {replica.name: StageEventKind.FAILED in replica.kinds("req-1") for replica in relay.replicas}
    assert failed[f"{guilty}/0"]
    assert relay.told("req-2")[0] == TEXT
    relay.assert_over("req-1", "req-2")


def test_many_requests_share_an_arena_that_holds_a_fraction_of_them() -> None:
    """Every row once and in order although many a put is refused at first: the decoder runs every third turn only."""
    relay = Relay(StartWhen.FIRST_CHUNK, ChunkPlan(1, 4), arena_bytes=2048)
    names = [f"req-{number}" for number in range(12)]
    for name in names:
        relay.start(name)
        relay.send(f"{name}: {TEXT * 4}", request_id=name)
    for _ in range(300):
        for _ in range(3):
            relay.encoder.loop.step()
        relay.decoder.loop.step()
    relay.run_to_release(*names)
    assert [relay.told(name)[0] for name in names] == [f"{name}: {TEXT * 4}" for name in names]
    statistics = relay.encoder.connector.statistics()
    assert statistics.num_refused > 0
    assert statistics.arena_high_water_bytes <= 2048
    relay.assert_over(*names)
    relay.close()


def test_requests_that_wait_for_a_place_in_the_consumer_do_not_starve_the_one_that_has_it() -> None:
    relay = Relay(StartWhen.FIRST_CHUNK, ChunkPlan(1, 4), arena_bytes=2048, decoder=replace(DECODER, max_num_seqs=1))
    names = [f"req-{number}" for number in range(12)]
    for name in names:
        relay.start(name)
        relay.send(TEXT * 4, request_id=name)
    try:
        relay.run_to_release(*names)
    finally:
        relay.close()
    assert [relay.told(name)[0] for name in names] == [TEXT * 4] * len(names)
