"""The orchestrator against a recorder in place of its sockets."""

import itertools
import time
from dataclasses import dataclass, field

import msgspec
import pytest

from antiphon.config.pipeline import Modality
from antiphon.errors import (
    AntiphonError,
    DeadlyRequestError,
    OverloadedError,
    ReplicaDiedError,
    RequestAbortedError,
    StageError,
    UnsupportedModalityError,
)
from antiphon.messages.control import (
    MAX_MESSAGE_BYTES,
    AbortRequest,
    AdmissionNews,
    Counter,
    Leave,
    Leaving,
    Peer,
    PeerDied,
    Ready,
    RequestAccepted,
    RequestFailed,
    RequestRejected,
    RequestReleased,
    StageEvent,
    StageEventKind,
    StartRequest,
    StatsReport,
    StopRequest,
    SubmitRequest,
)
from antiphon.messages.error_info import to_error, to_info
from antiphon.messages.params import RequestParams, SpeechParams
from antiphon.messages.report_parts import ReportGatherer, parts_of
from antiphon.models.voice.pipeline import PIPELINE as VOICE
from antiphon.orchestrator.admission import Admission
from antiphon.orchestrator.orchestrator import Orchestrator
from antiphon.transport.channel import ChannelFullError

TEXT, AUDIO = frozenset({Modality.TEXT}), frozenset({Modality.AUDIO})
STAGES = ("listener", "thinker", "talker", "code2wav")
PARAMS = RequestParams(speech=SpeechParams("heart", 1.5))
RELEASE_S = 60.0
API = "ipc://api-server/0.control"
Told = StartRequest | StopRequest | RequestAccepted | RequestRejected | RequestFailed | RequestReleased


@dataclass
class Bench:
    """An orchestrator of `voice`, and everything it has sent but reports."""

    max_inflight: int = 8
    apart_s: float = 0.0
    max_queue: int = 8
    sent: list[tuple[str, Told]] = field(default_factory=list)
    reports: list[tuple[str, StatsReport]] = field(default_factory=list)
    others: list[tuple[str, msgspec.Struct]] = field(default_factory=list)
    flushed: list[tuple[str, Told]] = field(default_factory=list)
    deaf: set[str] = field(default_factory=set)
    ended_pids: set[int] = field(default_factory=set)
    killed: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    removed_sockets: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        admission = Admission(max_inflight=self.max_inflight, max_queue=self.max_queue)
        self.orchestrator = Orchestrator(
            VOICE, admission, self, self, release_deadline_s=RELEASE_S, apart_s=self.apart_s
        )

    def watch(self, name: str, pid: int) -> bool:
        """A process ended before it joined if its pid is in `ended_pids`."""
        return pid not in self.ended_pids

    def kill(self, name: str) -> None:
        self.killed.append(name)

    def remove_sockets(self, *addresses: str) -> None:
        self.removed_sockets += addresses

    def forget(self, address: str) -> None:
        self.forgotten.append(address)

    def flush_to(self, address: str) -> None:
        """As if one that waits for what was said had it."""
        self.flushed.append((address, self.sent[-1][1]))

    def send(self, address: str, message: msgspec.Struct) -> None:
        if address in self.deaf:
            raise ChannelFullError(f"{address} does not read")
        if isinstance(message, StatsReport):
            self.reports.append((address, message))
        elif isinstance(message, Told):
            self.sent.append((address, message))
        else:
            self.others.append((address, message))

    def join(self, *replicas: str, api_servers: tuple[str, ...] = ("api-server/0",), pid: int = 0) -> "Bench":
        for name in replicas:
            self.orchestrator.handle(Ready(name, f"ipc://{name}.control", f"ipc://{name}.chunks", pid=pid))
        for name in api_servers:
            self.orchestrator.handle(
                Ready(name, f"ipc://{name}.control", f"ipc://{name}.chunks", f"ipc://{name}.client")
            )
        self.sent.clear()
        return self

    def submit(
        self,
        request_id: str,
        task: str = "speech",
        inputs: frozenset[Modality] = TEXT,
        outputs: frozenset[Modality] = AUDIO,
        api_server: str = "api-server/0",
        epoch: int = 0,
        client: str = "",
        ran_s: float = 0.0,
    ) -> None:
        self.orchestrator.handle(
            SubmitRequest(request_id, api_server, task, inputs, outputs, PARAMS, epoch, epoch > 0, client, ran_s)
        )

    def event(
        self, request_id: str, replica: str, kind: StageEventKind, error: AntiphonError | None = None, epoch: int = 0
    ) -> None:
        info = to_info(error) if error is not None else None
        self.orchestrator.handle(StageEvent(request_id, epoch, replica, kind, info))

    def release(self, request_id: str, *replicas: str, epoch: int = 0) -> None:
        for replica in replicas:
            self.event(request_id, replica, StageEventKind.RELEASED, epoch=epoch)

    def taken(self) -> list[tuple[str, Told]]:
        """What was sent since the last call."""
        sent, self.sent = self.sent, []
        return sent

    def starts(self) -> dict[str, StartRequest]:
        """Address -> StartRequest, of what was sent since the last call."""
        return {address: message for address, message in self.taken() if isinstance(message, StartRequest)}

    def rejection(self, request_id: str) -> AntiphonError:
        """The error of the only message sent since the last call."""
        ((address, message),) = self.taken()
        assert address == API and isinstance(message, RequestRejected) and message.request_id == request_id
        return to_error(message.error)

    def counters(self) -> dict[str, float]:
        """The pools' own counters as the api-servers hear them."""
        self.reports.clear()
        self.orchestrator.report()
        (pools,) = [report for address, report in self.reports if address == API and report.source == "pools"]
        return {"/".join((c.name, *(value for _, value in c.labels))): c.value for c in pools.counters}


@pytest.fixture
def bench() -> Bench:
    return Bench().join(*(f"{stage}/0" for stage in STAGES))


def peer(edge: str, replica: str) -> Peer:
    return Peer(edge, replica, f"ipc://{replica}.chunks")


def test_a_chat_with_audio_starts_every_stage_with_its_neighbours(bench: Bench) -> None:
    bench.submit("req-1", "chat", TEXT | AUDIO, TEXT | AUDIO)
    client = "ipc://api-server/0.client"
    chain = [peer(f"{a}->{b}", f"{a}/0") for a, b in itertools.pairwise(STAGES)]
    onward = [peer(f"{a}->{b}", f"{b}/0") for a, b in itertools.pairwise(STAGES)]

    def start(producer: Peer, consumers: tuple[Peer, ...], client_address: str) -> StartRequest:
        return StartRequest("req-1", 0, "chat", PARAMS, (producer,), consumers, client_address, "api-server/0")

    assert bench.taken() == [
        (API, RequestAccepted("req-1", 0, "listener/0", "ipc://listener/0.chunks", ("thinker", "code2wav"))),
        ("ipc://listener/0.control", start(Peer("client->listener", "api-server/0", ""), (onward[0],), "")),
        ("ipc://thinker/0.control", start(chain[0], (onward[1],), client)),
        ("ipc://talker/0.control", start(chain[1], (onward[2],), "")),
        ("ipc://code2wav/0.control", start(chain[2], (), client)),
    ]


def test_an_api_server_hears_at_once_where_its_input_goes(bench: Bench) -> None:
    bench.submit("req-1", "chat", TEXT, TEXT)
    assert bench.flushed == [(API, RequestAccepted("req-1", 0, "thinker/0", "ipc://thinker/0.chunks", ("thinker",)))]


def test_releases_are_owed_when_all_that_is_missing_may_have_been_said_without_hurry(bench: Bench) -> None:
    bench.submit("req-1")
    bench.release("req-1", "talker/0")
    assert not bench.orchestrator.is_owed_releases  # code2wav has said nothing, and will be heard
    bench.submit("req-2")
    bench.release("req-2", "code2wav/0")
    assert bench.orchestrator.is_owed_releases
    bench.release("req-2", "talker/0")
    assert not bench.orchestrator.is_owed_releases
    bench.release("req-1", "code2wav/0")
    assert not bench.orchestrator.is_owed_releases and not bench.orchestrator.num_open


def test_a_dead_last_replica_leaves_releases_owed(bench: Bench) -> None:
    bench.submit("req-1")
    bench.orchestrator.process_ended("code2wav/0")
    assert bench.orchestrator.is_owed_releases
    bench.release("req-1", "talker/0")
    assert not bench.orchestrator.is_owed_releases and not bench.orchestrator.num_open


def test_a_chat_of_text_only_starts_the_thinker_and_no_hand_off(bench: Bench) -> None:
    bench.submit("req-1", "chat", TEXT, TEXT)
    assert bench.taken() == [
        (API, RequestAccepted("req-1", 0, "thinker/0", "ipc://thinker/0.chunks", ("thinker",))),
        (
            "ipc://thinker/0.control",
            StartRequest(
                "req-1",
                0,
                "chat",
                PARAMS,
                (Peer("client->thinker", "api-server/0", ""),),
                (),
                "ipc://api-server/0.client",
                "api-server/0",
            ),
        ),
    ]


def test_a_request_is_released_when_its_last_replica_is(bench: Bench) -> None:
    bench.submit("req-1")
    bench.taken()
    bench.release("req-1", "talker/0")
    assert bench.taken() == []
    assert bench.orchestrator.num_open == 1
    bench.release("req-1", "code2wav/0")
    assert bench.taken() == [(API, RequestReleased("req-1"))]
    assert bench.orchestrator.num_open == 0
    counters = bench.counters()
    assert counters["requests_inflight"] == counters["replica_inflight/talker/0"] == 0


@pytest.mark.parametrize(
    ("task", "inputs", "outputs"),
    [
        ("chat", TEXT, TEXT),
        ("chat", TEXT | AUDIO, TEXT | AUDIO),
        ("speech", TEXT, AUDIO),
        ("transcription", AUDIO, TEXT),
    ],
)
def test_a_request_takes_at_most_six_messages_per_stage(
    bench: Bench, task: str, inputs: frozenset[Modality], outputs: frozenset[Modality]
) -> None:
    stages = VOICE.route(task, inputs, outputs).stages
    before = bench.counters()["request_messages_total"]
    bench.submit("req-1", task, inputs, outputs)
    for stage in stages:
        bench.release("req-1", f"{stage}/0")
    handled = 1 + len(stages)
    assert bench.counters()["request_messages_total"] - before == handled + len(bench.sent)
    assert handled + len(bench.sent) == 3 + 2 * len(stages) <= 6 * len(stages)
    assert bench.orchestrator.num_open == 0


def test_an_aborted_request_takes_at_most_six_messages_per_stage(bench: Bench) -> None:
    bench.submit("req-1")
    bench.orchestrator.handle(AbortRequest("req-1", "gone"))
    bench.release("req-1", "talker/0", "code2wav/0")
    assert bench.counters()["request_messages_total"] == 4 + len(bench.sent) <= 12
    assert bench.orchestrator.num_open == 0


def test_a_request_is_rejected_and_nothing_stays_bound_if_a_stage_has_no_replica() -> None:
    bench = Bench().join("talker/0")
    bench.submit("req-1")
    error = bench.rejection("req-1")
    assert isinstance(error, OverloadedError)
    assert "stage code2wav has no live replica" in error.message
    counters = bench.counters()
    assert counters["requests_inflight"] == counters["replica_inflight/talker/0"] == 0
    assert (counters["replicas_live/talker"], counters["replicas_live/code2wav"]) == (1, 0)
    assert bench.orchestrator.num_open == 0


@pytest.mark.parametrize(
    ("task", "inputs"), [("speech", AUDIO), ("speech", frozenset()), ("image", TEXT)], ids=["audio", "none", "task"]
)
def test_a_request_that_no_route_serves_is_rejected(bench: Bench, task: str, inputs: frozenset[Modality]) -> None:
    bench.submit("req-1", task, inputs)
    assert isinstance(bench.rejection("req-1"), UnsupportedModalityError)
    assert bench.counters()["requests_inflight"] == 0


def test_a_request_of_an_unknown_api_server_is_ignored(bench: Bench) -> None:
    bench.submit("req-1", api_server="api-server/7")
    assert bench.taken() == []
    assert bench.orchestrator.num_open == 0


def test_two_replicas_share_the_requests_by_load() -> None:
    bench = Bench().join("talker/0", "talker/1", "code2wav/0")
    entries = []
    for name in ("req-1", "req-2", "req-3"):
        bench.submit(name)
        (accepted,) = [message for _, message in bench.taken() if isinstance(message, RequestAccepted)]
        entries.append(accepted.entry_replica)
    assert entries == ["talker/0", "talker/1", "talker/0"]
    bench.release("req-1", "talker/0")
    bench.release("req-3", "talker/0")
    bench.taken()
    bench.submit("req-4")
    bench.submit("req-5")
    starts = [address for address, message in bench.taken() if isinstance(message, StartRequest)]
    assert [address for address in starts if "talker" in address] == [
        "ipc://talker/0.control",
        "ipc://talker/1.control",
    ]


def test_peers_are_the_replicas_that_this_request_is_bound_to() -> None:
    bench = Bench().join("talker/0", "code2wav/0", "code2wav/1")
    bench.submit("req-1")
    bench.taken()
    bench.submit("req-2")
    starts = bench.starts()
    assert starts["ipc://talker/0.control"].consumers == (peer("talker->code2wav", "code2wav/1"),)
    assert starts["ipc://code2wav/1.control"].producers == (peer("talker->code2wav", "talker/0"),)


def two_at_a_time() -> Bench:
    return Bench(max_inflight=2, max_queue=2).join("talker/0", "code2wav/0")


def test_requests_beyond_the_places_wait_and_run_in_order() -> None:
    bench = two_at_a_time()
    for name in ("req-1", "req-2", "req-3", "req-4"):
        bench.submit(name)
    accepted = [message.request_id for _, message in bench.taken() if isinstance(message, RequestAccepted)]
    assert accepted == ["req-1", "req-2"]
    bench.release("req-2", "talker/0", "code2wav/0")
    sent = bench.taken()
    assert sent[0] == (API, RequestReleased("req-2"))
    assert [message.request_id for _, message in sent if isinstance(message, RequestAccepted)] == ["req-3"]
    counters = bench.counters()
    assert (counters["requests_inflight"], counters["requests_queued"]) == (2, 1)


def test_a_request_beyond_the_queue_is_told_when_to_come_back() -> None:
    bench = two_at_a_time()
    for name in ("req-1", "req-2", "req-3", "req-4"):
        bench.submit(name)
    bench.taken()
    bench.submit("req-5")
    error = bench.rejection("req-5")
    assert isinstance(error, OverloadedError)
    assert error.retry_after_s >= 1.0
    assert bench.orchestrator.num_open == 4


def news_of(bench: Bench) -> list[tuple[str, int | None]]:
    """Whom the orchestrator has told about admission since the last call, and what."""
    bench.orchestrator.tell_news()
    others, bench.others[:] = list(bench.others), []
    return [(address, message.max_waiting) for address, message in others if isinstance(message, AdmissionNews)]


def test_every_api_server_hears_when_there_is_no_room_and_when_there_is_again() -> None:
    bench = two_at_a_time().join(api_servers=("api-server/1",))
    other = "ipc://api-server/1.control"
    for name in ("req-1", "req-2", "req-3"):
        bench.submit(name)
        assert news_of(bench) == []
    bench.submit("req-4")
    assert news_of(bench) == [(API, 1), (other, 1)]
    bench.submit("req-5")
    assert news_of(bench) == []  # that is known
    bench.orchestrator.report()
    assert news_of(bench) == [(API, 1), (other, 1)]  # once a second all the same
    bench.release("req-1", "talker/0", "code2wav/0")
    assert news_of(bench) == [(API, None), (other, None)]
    bench.orchestrator.report()
    assert news_of(bench) == []


def test_an_api_server_that_joins_while_there_is_no_room_hears_it() -> None:
    bench = two_at_a_time()
    for name in ("req-1", "req-2", "req-3", "req-4"):
        bench.submit(name)
    assert news_of(bench) == [(API, 1)]
    bench.join(api_servers=("api-server/1",))
    assert ("ipc://api-server/1.control", 1) in news_of(bench)


def test_a_client_with_less_in_the_queue_takes_the_place_of_one_with_most() -> None:
    bench = two_at_a_time()
    for name in ("req-1", "req-2", "req-3", "req-4"):
        bench.submit(name, client="greedy")
    bench.taken()
    bench.submit("req-5", client="modest")
    assert isinstance(bench.rejection("req-4"), OverloadedError)
    for name in ("req-1", "req-2"):
        bench.release(name, "talker/0", "code2wav/0")
    accepted = [message.request_id for _, message in bench.taken() if isinstance(message, RequestAccepted)]
    assert sorted(accepted) == ["req-3", "req-5"]


def test_a_queued_request_whose_stage_has_died_is_rejected_when_its_turn_comes() -> None:
    bench = Bench(max_inflight=1).join("talker/0", "code2wav/0")
    bench.submit("req-1")
    bench.submit("req-2")
    bench.taken()
    bench.orchestrator.process_ended("code2wav/0")
    bench.release("req-1", "talker/0")
    rejected = [message for _, message in bench.taken() if isinstance(message, RequestRejected)]
    assert [message.request_id for message in rejected] == ["req-2"]
    assert bench.counters()["requests_inflight"] == 0


@pytest.mark.parametrize("max_inflight", [1, 2], ids=["queued", "running"])
def test_an_id_that_is_in_use_is_not_taken_twice(max_inflight: int) -> None:
    bench = Bench(max_inflight=max_inflight).join("talker/0", "code2wav/0")
    bench.submit("req-1")
    bench.submit("req-2")
    bench.taken()
    bench.submit("req-2")
    assert "req-2 is still in use" in bench.rejection("req-2").message
    for name in ("req-1", "req-2"):
        bench.release(name, "talker/0", "code2wav/0")
    counters = bench.counters()
    assert counters["requests_inflight"] == counters["replica_inflight/talker/0"] == bench.orchestrator.num_open == 0


def test_an_abort_of_a_running_request_stops_its_replicas_and_ends_with_their_release(bench: Bench) -> None:
    bench.submit("req-1")
    bench.submit("req-2")
    bench.taken()
    bench.orchestrator.handle(AbortRequest("req-1", "its client has gone"))
    stop = StopRequest("req-1", 0, "its client has gone")
    assert bench.taken() == [("ipc://code2wav/0.control", stop), ("ipc://talker/0.control", stop)]
    bench.orchestrator.handle(AbortRequest("req-1", "again"))
    assert bench.taken() == []
    bench.release("req-1", "talker/0", "code2wav/0")
    assert bench.taken() == [(API, RequestReleased("req-1"))]
    assert bench.orchestrator.num_open == 1


def test_an_abort_of_a_waiting_request_takes_it_out_and_is_answered() -> None:
    bench = Bench(max_inflight=1).join("talker/0", "code2wav/0")
    bench.submit("req-1")
    bench.submit("req-2")
    bench.taken()
    bench.orchestrator.handle(AbortRequest("req-2", "it was not admitted in time"))
    error = bench.rejection("req-2")
    assert isinstance(error, RequestAbortedError)
    assert "it was not admitted in time" in error.message
    bench.release("req-1", "talker/0", "code2wav/0")
    assert bench.taken() == [(API, RequestReleased("req-1"))]
    assert bench.orchestrator.num_open == 0


def test_an_abort_of_an_unknown_or_ended_request_is_ignored(bench: Bench) -> None:
    bench.orchestrator.handle(AbortRequest("req-9", "gone"))
    bench.submit("req-1")
    bench.release("req-1", "talker/0", "code2wav/0")
    bench.taken()
    bench.orchestrator.handle(AbortRequest("req-1", "gone"))
    bench.release("req-1", "talker/0")
    assert bench.taken() == []
    assert bench.counters()["requests_inflight"] == 0


def test_a_stages_failure_is_told_to_the_client_and_the_others_are_stopped(bench: Bench) -> None:
    bench.submit("req-1")
    bench.taken()
    error = to_info(StageError("no voice"))
    bench.event("req-1", "talker/0", StageEventKind.FAILED, StageError("no voice"))
    assert bench.taken() == [
        (API, RequestFailed("req-1", error)),
        ("ipc://code2wav/0.control", StopRequest("req-1", 0, "talker/0 failed it", error)),
    ]


def test_a_dead_replica_fails_its_own_requests_only() -> None:
    bench = Bench().join("talker/0", "talker/1", "code2wav/0")
    bench.submit("req-1")
    bench.submit("req-2")
    bench.taken()
    bench.orchestrator.process_ended("talker/1")
    failures = [(address, m) for address, m in bench.taken() if isinstance(m, RequestFailed | StopRequest)]
    assert [(address, message.request_id) for address, message in failures] == [
        (API, "req-2"),
        ("ipc://code2wav/0.control", "req-2"),
    ]
    failure = failures[0][1]
    assert isinstance(failure, RequestFailed) and isinstance(to_error(failure.error), ReplicaDiedError)
    bench.release("req-2", "code2wav/0")
    assert bench.taken() == [(API, RequestReleased("req-2"))]
    bench.release("req-1", "talker/0", "code2wav/0")
    assert bench.taken() == [(API, RequestReleased("req-1"))]
    counters = bench.counters()
    assert counters["requests_inflight"] == counters["replica_inflight/code2wav/0"] == 0


def test_everybody_left_is_told_which_peer_has_died(bench: Bench) -> None:
    bench.orchestrator.process_ended("talker/0")
    told = {address for address, message in bench.others if message == PeerDied("talker/0", "ipc://talker/0.chunks")}
    assert told == {API, *(f"ipc://{stage}/0.control" for stage in STAGES if stage != "talker")}


def test_a_replica_that_comes_back_is_bound_again() -> None:
    bench = Bench().join("talker/0", "code2wav/0")
    bench.submit("req-1")
    bench.orchestrator.process_ended("talker/0")
    bench.release("req-1", "code2wav/0")
    bench.join("talker/0", api_servers=())
    bench.submit("req-2")
    assert set(bench.starts()) == {"ipc://talker/0.control", "ipc://code2wav/0.control"}
    assert bench.counters()["replica_inflight/talker/0"] == 1


def test_the_death_of_an_api_server_aborts_its_requests_only() -> None:
    bench = Bench(max_inflight=2, max_queue=8).join(
        "talker/0", "code2wav/0", api_servers=("api-server/0", "api-server/1")
    )
    for name, server in (("req-1", 0), ("req-2", 1), ("req-3", 1), ("req-4", 0)):
        bench.submit(name, api_server=f"api-server/{server}")
    bench.taken()
    bench.orchestrator.process_ended("api-server/1")
    requests = [message for _, message in bench.taken() if isinstance(message, StopRequest)]
    assert [message.request_id for message in requests] == ["req-2", "req-2"]
    assert bench.orchestrator.num_open == 3, "req-3 no longer waits"
    bench.release("req-2", "talker/0", "code2wav/0")
    accepted = [message.request_id for _, message in bench.taken() if isinstance(message, RequestAccepted)]
    assert accepted == ["req-4"]


def test_a_process_that_does_not_read_harms_nobody_else(bench: Bench) -> None:
    bench.deaf.add("ipc://talker/0.control")
    bench.submit("req-1")
    assert [address for address, _ in bench.taken()] == [API, "ipc://code2wav/0.control"]
    bench.submit("req-2", "chat", TEXT, TEXT)
    assert [address for address, _ in bench.taken()] == [API, "ipc://thinker/0.control"]


def test_a_process_that_does_not_read_is_killed(bench: Bench) -> None:
    bench.deaf.add("ipc://talker/0.control")
    bench.submit("req-1")
    assert bench.killed == ["talker/0"]


def test_a_replica_that_does_not_release_in_time_is_killed_and_its_death_ends_the_request(bench: Bench) -> None:
    bench.submit("req-1")
    bench.orchestrator.handle(AbortRequest("req-1", "its client has gone"))
    bench.release("req-1", "talker/0")
    bench.taken()
    bench.orchestrator.expire(1_000.0)
    bench.orchestrator.expire(1_000.0 + RELEASE_S)
    assert bench.killed == []
    bench.orchestrator.expire(1_001.0 + RELEASE_S)
    assert bench.killed == ["code2wav/0"]
    bench.orchestrator.process_ended("code2wav/0")
    assert bench.taken()[-1] == (API, RequestReleased("req-1"))
    bench.orchestrator.expire(9_000.0)
    assert bench.killed == ["code2wav/0"] and bench.orchestrator.num_open == 0


def test_a_hung_replica_is_killed_once_and_its_producers_who_wait_for_it_are_not(bench: Bench) -> None:
    for name in ("req-1", "req-2"):
        bench.submit(name, "chat", TEXT, TEXT | AUDIO)
        bench.orchestrator.handle(AbortRequest(name, "its client has gone"))
        bench.release(name, "code2wav/0")
    bench.orchestrator.expire(1_000.0)
    bench.orchestrator.expire(1_001.0 + RELEASE_S)
    assert bench.killed == ["talker/0"]
    bench.orchestrator.process_ended("talker/0")
    bench.release("req-1", "thinker/0")
    bench.orchestrator.expire(1_002.0 + RELEASE_S)
    assert bench.killed == ["talker/0"]
    bench.orchestrator.expire(1_003.0 + 2 * RELEASE_S)
    assert bench.killed == ["talker/0", "thinker/0"]


def test_nothing_more_is_bound_to_a_replica_that_drains_and_it_leaves_with_its_last_request() -> None:
    bench = Bench().join("talker/0", "talker/1", "code2wav/0")
    bench.submit("req-1")
    bench.submit("req-2")
    bench.orchestrator.handle(Leaving("talker/0"))
    bench.taken()
    for name in ("req-3", "req-4"):
        bench.submit(name)
        assert "ipc://talker/1.control" in bench.starts()
    assert bench.counters()["replicas_live/talker"] == 1
    bench.others.clear()
    bench.release("req-1", "talker/0")
    assert bench.others == [("ipc://talker/0.control", Leave())]
    bench.orchestrator.process_ended("talker/0")
    assert not [message for _, message in bench.taken() if isinstance(message, RequestFailed)]
    assert "ipc://talker/0.control" in bench.forgotten
    assert set(bench.removed_sockets) == {"ipc://talker/0.control", "ipc://talker/0.chunks"}


def test_an_idle_replica_that_drains_leaves_at_once(bench: Bench) -> None:
    bench.others.clear()
    bench.orchestrator.handle(Leaving("talker/0"))
    assert bench.others == [("ipc://talker/0.control", Leave())]
    bench.submit("req-1")
    assert "stage talker has no live replica" in bench.rejection("req-1").message


def test_a_request_that_is_started_again_goes_before_those_that_wait() -> None:
    bench = Bench(max_inflight=1, max_queue=1).join("talker/0", "code2wav/0")
    bench.submit("req-1")
    bench.submit("req-2")
    bench.orchestrator.process_ended("talker/0")
    bench.join("talker/0", api_servers=())
    bench.orchestrator.handle(AbortRequest("req-2", "for the test's sake"))
    bench.submit("req-3")
    bench.submit("req-1", epoch=0)
    rejections = [to_error(message.error) for _, message in bench.taken() if isinstance(message, RequestRejected)]
    assert "req-1 is still in use" in rejections[-1].message
    bench.release("req-1", "code2wav/0")
    assert bench.starts()["ipc://talker/0.control"].request_id == "req-3"
    bench.submit("req-4")
    bench.submit("req-1", epoch=1)
    bench.release("req-3", "talker/0", "code2wav/0")
    start = bench.starts()["ipc://talker/0.control"]
    assert (start.request_id, start.epoch) == ("req-1", 1)


def test_a_request_that_is_started_again_waits_for_a_replica() -> None:
    bench = Bench().join("talker/0", "code2wav/0")
    bench.submit("req-1")
    bench.orchestrator.process_ended("talker/0")
    bench.release("req-1", "code2wav/0")
    bench.taken()
    bench.submit("req-1", epoch=1)
    bench.submit("req-2", epoch=1)
    assert bench.taken() == [] and bench.orchestrator.num_open == 2
    bench.orchestrator.handle(AbortRequest("req-2", "its client has gone"))
    assert isinstance(bench.rejection("req-2"), RequestAbortedError)
    bench.orchestrator.handle(Ready("talker/0", "ipc://talker/0.control", "ipc://talker/0.chunks"))
    assert {start.epoch for start in bench.starts().values()} == {1}
    bench.event("req-1", "talker/0", StageEventKind.FAILED, StageError("late news of the first start"), epoch=0)
    assert bench.taken() == []
    bench.release("req-1", "talker/0", "code2wav/0", epoch=1)
    assert bench.taken() == [(API, RequestReleased("req-1"))]
    assert bench.orchestrator.num_open == bench.counters()["requests_inflight"] == 0


def met_a_death(ran_s: dict[str, float]) -> Bench:
    """Requests that ran so long when their only talker died; it is there again, and so are they."""
    bench = Bench(apart_s=60.0).join("talker/0", "code2wav/0")
    for name in ran_s:
        bench.submit(name)
    bench.orchestrator.process_ended("talker/0")
    assert [type(to_error(m.error)) for _, m in bench.taken() if isinstance(m, RequestFailed)] == [
        ReplicaDiedError
    ] * len(ran_s)
    for name in ran_s:
        bench.release(name, "code2wav/0")
    bench.join("talker/0", api_servers=())
    bench.taken()
    for name, seconds in ran_s.items():
        bench.submit(name, epoch=1, ran_s=seconds)
    return bench


def started(bench: Bench) -> list[str]:
    """The requests that talker/0 has been told to start since the last call."""
    return [
        message.request_id
        for address, message in bench.taken()
        if isinstance(message, StartRequest) and address == "ipc://talker/0.control"
    ]


def test_requests_that_met_a_death_start_again_one_at_a_time_until_one_of_them_is_over() -> None:
    bench = met_a_death({"req-1": 30.0, "req-2": 20.0, "req-3": 40.0})
    assert started(bench) == ["req-1"]  # the first that came back
    assert bench.counters()["requests_queued"] == 2 and bench.orchestrator.num_open == 3
    assert bench.orchestrator.is_owed_releases  # the next one waits for what may be said without hurry
    bench.submit("req-new")
    assert started(bench) == ["req-new"]
    bench.release("req-1", "talker/0", "code2wav/0", epoch=1)
    assert started(bench) == ["req-2"]
    bench.orchestrator.handle(AbortRequest("req-3", "gone"))
    bench.release("req-2", "talker/0", "code2wav/0", epoch=1)
    bench.release("req-new", "talker/0", "code2wav/0")
    assert started(bench) == [] and bench.orchestrator.num_open == 0
    assert not bench.orchestrator.is_owed_releases


def test_a_death_in_a_trial_is_the_doing_of_the_one_on_trial_and_the_others_start_again_at_once() -> None:
    bench = met_a_death({"req-1": 30.0, "req-2": 20.0, "req-3": 40.0})
    bench.submit("req-new")
    assert started(bench) == ["req-1", "req-new"]
    bench.orchestrator.process_ended("talker/0")
    errors = {m.request_id: type(to_error(m.error)) for _, m in bench.taken() if isinstance(m, RequestFailed)}
    assert errors == {"req-1": DeadlyRequestError, "req-new": ReplicaDiedError}
    bench.join("talker/0", api_servers=())
    bench.release("req-1", "code2wav/0", epoch=1)
    assert started(bench) == ["req-2", "req-3"]


def test_a_trial_whose_api_server_dies_does_not_hold_up_the_others() -> None:
    bench = Bench(apart_s=60.0).join("code2wav/0", api_servers=("api-server/0", "api-server/1"))
    bench.submit("req-1", epoch=1, api_server="api-server/1")
    bench.submit("req-2", epoch=1)
    bench.orchestrator.process_ended("api-server/1")
    assert bench.orchestrator.due_s < time.monotonic()
    bench.orchestrator.start_again(time.monotonic())
    bench.join("talker/0", api_servers=())
    bench.release("req-2", "talker/0", "code2wav/0", epoch=1)
    assert bench.orchestrator.num_open == 0


def test_requests_that_wait_for_a_replica_go_with_their_api_server() -> None:
    bench = Bench().join("code2wav/0")
    bench.submit("req-1", epoch=1)
    assert bench.orchestrator.num_open == 1
    bench.orchestrator.process_ended("api-server/0")
    assert bench.orchestrator.num_open == 0


def test_the_end_of_an_earlier_process_of_a_name_does_not_touch_the_later_one() -> None:
    bench = Bench().join("code2wav/0").join("talker/0", api_servers=(), pid=11)
    bench.submit("req-1")
    bench.join("talker/0", api_servers=(), pid=12)
    bench.release("req-1", "code2wav/0")
    bench.submit("req-2")
    bench.taken()
    bench.orchestrator.process_ended("talker/0", 11)
    assert bench.taken() == []
    bench.orchestrator.process_ended("talker/0", 12)
    assert isinstance(bench.taken()[0][1], RequestFailed)


def test_a_process_that_has_ended_before_it_joined_is_not_bound(bench: Bench) -> None:
    bench.ended_pids.add(13)
    bench.orchestrator.process_ended("talker/0")
    bench.orchestrator.handle(Ready("talker/0", "ipc://talker/0.control", "ipc://talker/0.chunks", pid=13))
    bench.submit("req-1")
    assert "stage talker has no live replica" in bench.rejection("req-1").message


def test_the_last_report_of_each_live_process_is_passed_on(bench: Bench) -> None:
    for value in (1.0, 2.0):
        bench.orchestrator.handle(StatsReport("talker/0", (Counter("steps", (), value),)))
    bench.reports.clear()
    bench.orchestrator.report()
    assert (API, StatsReport("talker/0", (Counter("steps", (), 2.0),))) in bench.reports
    assert len([report for _, report in bench.reports if report.source == "talker/0"]) == 1
    bench.orchestrator.process_ended("talker/0")
    bench.orchestrator.handle(StatsReport("talker/0", (Counter("steps", (), 3.0),)))
    bench.reports.clear()
    bench.orchestrator.report()
    assert not [report for _, report in bench.reports if report.source == "talker/0"]


def test_with_a_thousand_replicas_no_message_is_larger_than_the_lane_takes_and_none_is_told_per_join() -> None:
    names = [f"{stage}/{number}" for stage in STAGES for number in range(250)]
    bench = Bench().join(*names)
    assert bench.reports == []
    bench.orchestrator.tell_news()
    pools = whole(bench, "pools")
    assert sum(value for name, value in pools.items() if name.startswith("replicas_live")) == len(names)
    consumed = tuple(Counter("client_messages_consumed_total", (("replica", name),), 2.0) for name in names)
    for part in parts_of("api-server/0", consumed):
        bench.orchestrator.handle(part)
    bench.orchestrator.report()
    assert len(whole(bench, "api-server/0")) == len(names)
    everything = (message for _, message in (*bench.reports, *bench.others, *bench.sent))
    assert max(len(msgspec.msgpack.encode(message)) for message in everything) < MAX_MESSAGE_BYTES


def whole(bench: Bench, source: str) -> dict[str, float]:
    """The last report of `source` that an api-server has heard, put together."""
    gatherer, counters = ReportGatherer(), tuple[Counter, ...]()
    for address, part in bench.reports:
        if address == API and part.source == source and (report := gatherer.take(part)) is not None:
            counters = report.counters
    return {"/".join((each.name, *(value for _, value in each.labels))): each.value for each in counters}


def test_every_end_of_a_request_is_counted_by_task_and_outcome(bench: Bench) -> None:
    for number in range(4):
        bench.submit(f"req-{number}")
    bench.release("req-0", "talker/0", "code2wav/0")
    bench.orchestrator.handle(AbortRequest("req-1", "gone"))
    bench.event("req-2", "talker/0", StageEventKind.FAILED, StageError("no"))
    assert bench.counters()["aborts_pending"] == 2
    bench.release("req-1", "talker/0", "code2wav/0")
    bench.release("req-2", "talker/0", "code2wav/0")
    bench.orchestrator.process_ended("code2wav/0")
    bench.release("req-3", "talker/0")
    bench.submit("req-4")
    counters = bench.counters()
    assert {name: value for name, value in counters.items() if name.startswith("requests_total")} == {
        "requests_total/speech/finished": 1,
        "requests_total/speech/aborted": 1,
        "requests_total/speech/failed": 1,
        "requests_total/speech/replica_died": 1,
        "requests_total/speech/rejected": 1,
    }
    assert (counters["aborts_pending"], counters["aborts_acknowledged_total"]) == (0, 3)


def test_a_death_is_counted_and_a_drain_is_none(bench: Bench) -> None:
    bench.orchestrator.process_ended("talker/0")
    bench.orchestrator.handle(Leaving("code2wav/0"))
    bench.orchestrator.process_ended("code2wav/0")
    bench.join("talker/0", "code2wav/0", api_servers=())
    deaths = {name: value for name, value in bench.counters().items() if name.startswith("replica_")}
    assert deaths["replica_deaths_total/talker/0"] == deaths["replica_restarts_total/talker/0"] == 1
    assert not [name for name in deaths if name.endswith("code2wav/0") and "inflight" not in name]


def test_an_api_server_that_says_that_it_leaves_has_not_died(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.orchestrator.handle(Leaving("api-server/0"))
    bench.orchestrator.process_ended("api-server/0")
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    bench.join("talker/0")
    bench.orchestrator.process_ended("api-server/0")
    assert "api-server/0 has gone" in caplog.text


def test_a_process_that_has_ended_before_it_joined_leaves_no_socket(bench: Bench) -> None:
    bench.ended_pids.add(13)
    bench.orchestrator.handle(Ready("talker/7", "ipc://talker/7.control", "ipc://talker/7.chunks", pid=13))
    assert bench.removed_sockets == ["ipc://talker/7.control", "ipc://talker/7.chunks"]
