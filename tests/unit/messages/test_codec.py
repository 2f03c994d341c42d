"""Every message of every lane survives the wire, and nothing else passes for one."""

import gc
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from antiphon.client.output_stream import StageMessage
from antiphon.config.deploy import DeployConfig, EdgeDeploy, StageDeploy
from antiphon.config.pipeline import Modality, StartWhen
from antiphon.errors import StageError
from antiphon.messages import codec
from antiphon.messages.bootstrap import Bootstrap
from antiphon.messages.client import (
    Addressed,
    AudioChunk,
    CalledTool,
    ClientFrame,
    ClientOutput,
    ImageOutput,
    OutputEnd,
    OutputError,
    RawRows,
    Segment,
    SegmentScores,
    TextDelta,
    TokenChance,
    TokenDelta,
    TokenLogprob,
    Usage,
    Word,
)
from antiphon.messages.control import (
    MAX_MESSAGE_BYTES,
    AbortRequest,
    AdmissionNews,
    Counter,
    Joined,
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
    ToApiServer,
    ToOrchestrator,
    ToReplica,
)
from antiphon.messages.error_info import ErrorInfo, to_info
from antiphon.messages.interstage import ChunkFlag, ChunkForm, ChunkHeader, TensorSpec
from antiphon.messages.params import RequestParams, SamplingParams, SpeechParams, TranscriptionParams, check_size

ERROR = ErrorInfo("OverloadedError", "wait", "model", "overloaded", 2.5)
PARAMS = RequestParams(
    SamplingParams(7, 0.0, 0.5, 3, 0.1, 1.2, ("a", "ß"), True, 99),
    SpeechParams("heart", 1.5, "en", 4),
    TranscriptionParams("de", "davor", 0.2),
)
STATS = StatsReport("talker/0", (Counter("num", (("lane", "client"),), 1.5),))
TO_ORCHESTRATOR: list[ToOrchestrator] = [
    SubmitRequest("req-1", "api-server/0", "chat", frozenset({Modality.TEXT}), frozenset(Modality), PARAMS),
    AbortRequest("req-1", "gone"),
    StageEvent("req-1", 2, "talker/1", StageEventKind.FAILED, ERROR),
    StageEvent("req-1", 0, "talker/1", StageEventKind.RELEASED),
    Ready("talker/1", "ipc://a", "ipc://b", "ipc://c"),
    Leaving("talker/1"),
    STATS,
]
TO_REPLICA: list[ToReplica] = [
    StartRequest("req-1", 3, "chat", PARAMS, (Peer("a->b", "a/0", "ipc://a"),), (Peer("b->c", "c/0", "x"),), "ipc://c"),
    StopRequest("req-1", 3, "aborted"),
    StopRequest("req-1", 3, "talker/0 failed it", ERROR),
    Joined(),
    PeerDied("talker/0", "ipc://t", "ipc://c"),
    Leave(),
]
TO_API_SERVER: list[ToApiServer] = [
    RequestAccepted("req-1", 1, "talker/0", "ipc://t", ("thinker", "code2wav")),
    RequestRejected("req-1", ERROR),
    RequestFailed("req-1", ERROR),
    RequestReleased("req-1"),
    AdmissionNews(2, 5, 1, 3.5),
    AdmissionNews(2, 4, None, 3.5),
    PeerDied("talker/0", "ipc://t"),
    STATS,
]
OUTPUTS: list[ClientOutput] = [
    TextDelta("Grüße"),
    TextDelta("ß", (TokenLogprob(TokenChance("\ufffd", b"\xc3", -1.5), (TokenChance("a", b"a", -0.5),)),)),
    CalledTool("weather", '{"city": "Ulm"}'),
    TokenDelta([1, 2, 3]),
    AudioChunk(b"\x00\x01\xff", 24_000),
    ImageOutput(bytes(12), 2, 2, 3),
    Segment("word", 0.25, 1.5, "en"),
    Segment("word", 0.25, 1.5, "en", (Word("word", 0.5, 1.0),), SegmentScores(0, (1, 2), 0.0, -0.5, 1.25, 0.1)),
    RawRows("hidden", "uint16", (2, 3), bytes(12)),
    OutputEnd("length", Usage(1, 2, 3)),
    OutputError(ERROR),
]


@pytest.mark.parametrize("message", TO_ORCHESTRATOR, ids=lambda message: type(message).__name__)
def test_what_is_told_to_the_orchestrator_comes_back_equal(message: ToOrchestrator) -> None:
    assert codec.TO_ORCHESTRATOR.decode(msgspec.msgpack.encode(message)) == message


@pytest.mark.parametrize("message", TO_REPLICA, ids=lambda message: type(message).__name__)
def test_what_is_told_to_a_replica_comes_back_equal(message: ToReplica) -> None:
    assert codec.TO_REPLICA.decode(msgspec.msgpack.encode(message)) == message


@pytest.mark.parametrize("message", TO_API_SERVER, ids=lambda message: type(message).__name__)
def test_what_is_told_to_an_api_server_comes_back_equal(message: ToApiServer) -> None:
    assert codec.TO_API_SERVER.decode(msgspec.msgpack.encode(message)) == message


@pytest.mark.parametrize("output", OUTPUTS, ids=lambda output: type(output).__name__)
def test_an_output_comes_back_equal_in_its_frame(output: ClientOutput) -> None:
    frame = ClientFrame("talker/0", [Addressed("req-1", 1, [output, output]), Addressed("req-2", 0, [TextDelta("a")])])
    assert codec.CLIENT_FRAME.decode(msgspec.msgpack.encode(frame)) == frame


def test_a_frame_that_says_nothing_of_a_request_is_none() -> None:
    frame = msgspec.msgpack.encode(ClientFrame("talker/0", [Addressed("req-1", 1, [])]))
    with pytest.raises(msgspec.ValidationError, match="length >= 1"):
        codec.CLIENT_FRAME.decode(frame)


@pytest.mark.parametrize("output", OUTPUTS, ids=lambda output: type(output).__name__)
def test_the_garbage_collector_looks_at_no_output_that_waits(output: ClientOutput) -> None:
    frame = codec.CLIENT_FRAME.decode(
        msgspec.msgpack.encode(ClientFrame("talker/0", [Addressed("req-1", 1, [output])]))
    )
    (addressed,) = frame.addressed
    assert not any(gc.is_tracked(each) for each in (addressed, addressed.outputs[0], StageMessage("talker", output)))


def test_the_largest_of_each_kind_fits_the_orchestrators_lane() -> None:
    """All but reports, which go in parts: what has a length that somebody else chooses is bounded where it comes in."""
    name, address, sign = "r" * 1_000, "x" * 107, "\U0001f600"
    params = RequestParams(SamplingParams(stop=("s" * 32_000,)))
    check_size(params)
    error = to_info(StageError(sign * 10_000, param=sign * 10_000, code=sign * 10_000))
    largest: list[ToOrchestrator] = [
        SubmitRequest(name, name, name, frozenset(Modality), frozenset(Modality), params, 2**60, True, name),
        AbortRequest(name, name),
        StageEvent(name, 2**60, name, StageEventKind.FAILED, error),
        Ready(name, address, address, address, 2**30),
        Leaving(name),
    ]
    assert {type(each) for each in largest} == set(get_args(ToOrchestrator)) - {StatsReport}
    assert all(len(msgspec.msgpack.encode(each)) < MAX_MESSAGE_BYTES for each in largest)


def test_the_samples_above_leave_no_message_of_a_union_out() -> None:
    for union, samples in (
        (ToOrchestrator, TO_ORCHESTRATOR),
        (ToReplica, TO_REPLICA),
        (ToApiServer, TO_API_SERVER),
        (ClientOutput, OUTPUTS),
    ):
        assert {type(sample) for sample in samples} == set(union.__args__)


@pytest.mark.parametrize("flag", [ChunkFlag.END, ChunkFlag.ERROR, ChunkFlag.ABORT])
def test_a_form_comes_back_equal_and_a_header_with_an_end_is_terminal(flag: ChunkFlag) -> None:
    tensors = (TensorSpec("hidden", "float32", (16,), True), TensorSpec("doc", "uint8", (9,), False))
    form = ChunkForm("req-1", 2, "a->b", "a/0", tensors)
    assert msgspec.msgpack.decode(form.encoded, type=ChunkForm) == form
    assert form.whole_keys == {"doc"}
    assert ChunkHeader(form, 7, 12, 4, int(flag), ERROR).is_terminal


def test_a_chunk_header_without_a_flag_is_not_terminal() -> None:
    assert not ChunkHeader(ChunkForm("req-1", 0, "a->b", "a/0"), 0).is_terminal


def test_a_message_of_another_lane_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        codec.TO_REPLICA.decode(msgspec.msgpack.encode(RequestReleased("req-1")))
    with pytest.raises(msgspec.ValidationError):
        codec.TO_ORCHESTRATOR.decode(msgspec.msgpack.encode(StopRequest("req-1", 0, "aborted")))
    with pytest.raises(msgspec.ValidationError):
        codec.TO_API_SERVER.decode(msgspec.msgpack.encode(AbortRequest("req-1", "gone")))


def test_an_event_of_a_kind_that_nobody_knows_is_refused() -> None:
    raw = msgspec.msgpack.encode(StageEvent("req-1", 0, "talker/1", StageEventKind.RELEASED))
    with pytest.raises(msgspec.ValidationError, match=r"\$\.kind"):
        codec.TO_ORCHESTRATOR.decode(raw.replace(b"released", b"unheard!"))


def test_a_bootstrap_file_gives_the_deployment_that_was_written(tmp_path: Path) -> None:
    config = DeployConfig(
        stages={"talker": StageDeploy(replicas=2, python="/usr/bin/python")},
        edges={"thinker->talker": EdgeDeploy(rows=5, start_when=StartWhen.ALL_CHUNKS)},
    )
    bootstrap = Bootstrap("talker/1", "voice", config, "/run", "ipc://o", "ipc://u", "ipc://c", "ipc://d", "ipc://e", 7)
    bootstrap.write(tmp_path / "talker.json")
    assert Bootstrap.read(str(tmp_path / "talker.json")) == bootstrap
