"""The output router: every lane gets what was declared for it, an end exactly once, and nothing undeclared."""

import itertools
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from antiphon.config.pipeline import (
    ChunkPlan,
    ClientKind,
    EdgeSpec,
    EngineKind,
    Lane,
    Layout,
    OutputSpec,
    Policy,
    StageSpec,
)
from antiphon.connector.base import Chunk
from antiphon.connector.inproc import InprocConnector
from antiphon.errors import HandoffTimeoutError, ReplicaDiedError, StageError, UndeclaredOutputError
from antiphon.messages.client import (
    AudioChunk,
    ClientFrame,
    ImageOutput,
    OutputEnd,
    OutputError,
    RawRows,
    Segment,
    TextDelta,
    TokenDelta,
    Usage,
)
from antiphon.messages.control import Peer, StartRequest
from antiphon.messages.interstage import ChunkFlag
from antiphon.messages.params import RequestParams
from antiphon.stage.declared import DeclaredOutput
from antiphon.stage.output_form import problem_of
from antiphon.stage.outputs import OutputRouter
from antiphon.stage.request import StageOutput
from antiphon.transport.channel import ChannelFullError, FrameInlet, Outlet
from tests.descriptors import only_more_descriptors

SPEC = StageSpec(
    name="thinker",
    engine=EngineKind.GENERATION,
    model="nowhere:Nothing",
    outputs=(
        OutputSpec("hidden", Lane.HANDOFF, "float32", (4,)),
        OutputSpec("token", Lane.BOTH, "int64", client=ClientKind.TOKENS),
        OutputSpec("summary", Lane.HANDOFF, "float32", (None,), layout=Layout.WHOLE, policy=Policy.REPLACE),
        OutputSpec("pooled", Lane.HANDOFF, "float32", (None,)),
    ),
)
TALKER = EdgeSpec("thinker", "talker", ("hidden", "token", "summary"))
DRAWER = EdgeSpec("thinker", "drawer", ("pooled",))
PLANS = {TALKER.name: ChunkPlan(1, 1), DRAWER.name: ChunkPlan(1, 1)}
DEADLINES_S = dict.fromkeys(PLANS, 10.0)
_numbers = itertools.count()


class RecordingOutlet:
    """Keeps what is sent; can be full."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, ClientFrame]] = []
        self.forgotten: list[str] = []
        self.is_full = False

    def send(self, address: str, message: msgspec.Struct) -> None:
        if self.is_full:
            raise ChannelFullError(address)
        assert isinstance(message, ClientFrame)
        self.sent.append((address, message))

    def reach(self, address: str) -> None:
        pass

    def forget(self, address: str) -> None:
        self.forgotten.append(address)


class Bench:
    """A router with two out-edges, and the consumers behind them."""

    def __init__(self, arena_bytes: int = 1 << 20) -> None:
        number = next(_numbers)
        names = ("producer", "talker", "drawer")
        self.producer, self.talker, self.drawer = (
            InprocConnector(f"outputs-{name}-{number}", arena_bytes=arena_bytes) for name in names
        )
        for connector in self.connectors:
            connector.startup()
        self.outlet = RecordingOutlet()
        self.router = OutputRouter(
            "thinker/0", SPEC, (TALKER, DRAWER), PLANS, self.producer, self.outlet, deadlines_s=DEADLINES_S
        )

    @property
    def connectors(self) -> tuple[InprocConnector, ...]:
        return self.producer, self.talker, self.drawer

    def open(
        self, name: str = "req-1", *, consumers: tuple[str, ...] = ("talker", "drawer"), client: str = "ipc://api"
    ) -> frozenset[str]:
        addresses = {"talker": self.talker.address, "drawer": self.drawer.address}
        peers = tuple(Peer(f"thinker->{consumer}", f"{consumer}/0", addresses[consumer]) for consumer in consumers)
        return self.router.open(StartRequest(name, 0, "chat", RequestParams(), (), peers, client))

    def flush(self) -> dict[str, bool]:
        """Put and send all that is due, as a stage with nothing else to do does."""
        blocked = self.router.flush()
        self.router.send()
        return blocked

    def arrived(self, consumer: str) -> list[Chunk]:
        """What has come to a consumer, released."""
        connector = {"talker": self.talker, "drawer": self.drawer}[consumer]
        chunks = []
        while (chunk := connector.get()) is not None:
            chunks.append(chunk)
            connector.release(chunk)
        self.producer.get()
        return chunks

    def said(self, request_id: str = "req-1") -> list[object]:
        """What the client of a request has been told so far."""
        frames = [frame for _, frame in self.outlet.sent]
        return [said for frame in frames for a in frame.addressed if a.request_id == request_id for said in a.outputs]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    for connector in made.connectors:
        connector.close()


def hidden(rows: int, width: int = 4) -> np.ndarray:
    return np.arange(rows * width, dtype=np.float32).reshape(rows, width)


def token(*ids: int) -> np.ndarray:
    return np.array(ids, np.int64)


GOOD = StageOutput(handoff={"talker": {"hidden": hidden(2), "token": token(5, 6)}}, client=(TokenDelta([5, 6]),))


def test_rows_go_to_their_consumer_and_the_client_output_to_the_client(bench: Bench) -> None:
    assert bench.open() == {"talker", "drawer"}
    bench.router.route("req-1", GOOD)
    bench.flush()
    (chunk,) = bench.arrived("talker")
    assert chunk.arrays["hidden"].tolist() == hidden(2).tolist()
    assert chunk.arrays["token"].tolist() == [5, 6]
    assert bench.arrived("drawer") == []
    assert bench.said() == [TokenDelta([5, 6])]


UNDECLARED = {
    "key": (
        {"talker": {"hidden": hidden(1), "mood": token(1)}},
        (),
        ["thinker", "'mood'", "it declares hidden, token, summary, pooled"],
    ),
    "key of another edge": (
        {"talker": {"pooled": hidden(1)}},
        (),
        ["thinker/0", "req-1", "'pooled' on thinker->talker", "one of ['hidden', 'token', 'summary']"],
    ),
    "consumer": (
        {"singer": {"hidden": hidden(1)}},
        (),
        ["thinker/0", "req-1", "handed off to 'singer'", "one of ['drawer', 'talker']"],
    ),
    "dtype": (
        {"talker": {"hidden": hidden(1).astype(np.float64)}},
        (),
        ["thinker", "req-1", "'hidden' is float64 [1, 4]", "expected float32 [n, 4]"],
    ),
    "row shape": (
        {"talker": {"hidden": hidden(2, width=5)}},
        (),
        ["thinker", "req-1", "'hidden' is float32 [2, 5]", "expected float32 [n, 4]"],
    ),
    "row count": (
        {"talker": {"hidden": hidden(2), "token": token(1)}},
        (),
        ["thinker/0", "req-1", "rows {'hidden': 2, 'token': 1} on thinker->talker", "as many rows of every key"],
    ),
    "no array": (
        {"talker": {"hidden": [[0.0] * 4]}},
        (),
        ["thinker/0", "req-1", "got 'hidden' as a list", "expected a numpy array"],
    ),
    "no client data": (
        {},
        ("hello",),
        ["thinker/0", "req-1", "got str", "on the client lane"],
    ),
    "client kind": (
        {},
        (TextDelta("hello"),),
        ["thinker/0", "req-1", "TextDelta", "tokens", "on the client lane"],
    ),
}


@pytest.mark.parametrize("case", UNDECLARED)
def test_what_is_not_declared_is_an_error_that_says_what_came_and_what_should_have(bench: Bench, case: str) -> None:
    handoff, client, parts = UNDECLARED[case]
    bench.open()
    good_part = {"drawer": {"pooled": hidden(1)}}
    with pytest.raises(UndeclaredOutputError) as caught:
        bench.router.route("req-1", StageOutput({**good_part, **handoff}, (*GOOD.client, *client), finished=True))
    for part in parts:
        assert part in caught.value.message
    bench.flush()
    assert bench.arrived("talker") == bench.arrived("drawer") == bench.said() == [], "something was forwarded"


CANNOT_TRAVEL = {
    "numpy int in usage": (StageOutput(finished=True, usage=Usage(np.int64(3))), "Usage.num_input_tokens is int64"),
    "half a token": (StageOutput(finished=True, usage=Usage(1, 2.5)), "Usage.num_output_tokens is float 2.5"),
    "no usage": (StageOutput(finished=True, usage=None), "usage is a NoneType"),
    "no finish reason": (StageOutput(finished=True, finish_reason=None), "OutputEnd.finish_reason is NoneType"),
    "numpy tokens": (StageOutput(client=(TokenDelta([np.int64(1)]),)), "TokenDelta.token_ids is list"),
    "an int of any size": (StageOutput(client=(TokenDelta([2**63]),)), "TokenDelta.token_ids is list"),
    "no client outputs": (StageOutput(client=None), "client is a NoneType"),
    "no hand-off": (StageOutput(None), "handoff is no dict of dicts"),
    "a list of rows": (StageOutput({"drawer": [hidden(1)]}), "handoff is no dict of dicts"),
    "first row": (StageOutput(first_rows={"drawer": "0"}), "first_rows is no dict of ints"),
}


@pytest.mark.parametrize("case", CANNOT_TRAVEL)
def test_what_no_message_can_carry_is_an_error_of_its_request_and_nothing_is_forwarded(bench: Bench, case: str) -> None:
    output, said = CANNOT_TRAVEL[case]
    bench.open()
    with pytest.raises(UndeclaredOutputError) as caught:
        bench.router.route("req-1", output)
    assert said in caught.value.message and "thinker/0: req-1" in caught.value.message
    bench.flush()
    assert bench.arrived("talker") == bench.arrived("drawer") == bench.said() == [], "something was forwarded"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (TextDelta("a\udcff"), r"TextDelta.text is str 'a\udcff'"),
        (AudioChunk(np.zeros(2, np.int16), 24_000), "AudioChunk.pcm is ndarray"),
        (AudioChunk(b"", 0), "AudioChunk.sample_rate is int 0"),
        (Segment("a", 0, np.float64(1)), "Segment.end_s is float64"),
        (AudioChunk(bytearray(2), 24_000), ""),
        (Segment("\xe9", 0, 0.5), ""),
        (RawRows("key", "float32", (1, 2), b"12345678"), ""),
        (ImageOutput(b"123", 1, 1, True), "ImageOutput.channels is bool True"),
    ],
)
def test_a_message_to_the_client_has_fields_of_the_types_that_it_declares(message, said: str) -> None:
    assert problem_of(message).startswith(said) if said else problem_of(message) == ""


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"pooled": hidden(1, width=3)}, r"pooled float32 \[3\]"),
        ({"pooled": hidden(0, width=3)}, r"pooled float32 \[3\]"),
    ],
    ids=["rows of another size", "no rows of another size"],
)
def test_rows_that_could_not_be_joined_to_the_first_ones_are_undeclared(bench: Bench, second, said: str) -> None:
    bench.open()
    bench.router.route("req-1", StageOutput({"drawer": {"pooled": hidden(1, width=2)}}))
    problem = rf"req-1: got rows of {said} on thinker->drawer, expected pooled float32 \[2\], as in its first rows"
    with pytest.raises(UndeclaredOutputError, match=problem):
        bench.router.route("req-1", StageOutput({"drawer": second}))
    bench.flush()
    assert [chunk.arrays["pooled"].tolist() for chunk in bench.arrived("drawer")] == [[[0.0, 1.0]]]


def test_a_step_that_leaves_out_a_key_of_the_first_rows_is_undeclared(bench: Bench) -> None:
    bench.open()
    bench.router.route("req-1", GOOD)
    with pytest.raises(
        UndeclaredOutputError, match=r"hidden float32 \[4\] on thinker->talker, expected .*token int64 \[\]"
    ):
        bench.router.route("req-1", StageOutput({"talker": {"hidden": hidden(1)}}))


def test_each_request_may_have_its_own_size_where_any_size_is_declared(bench: Bench) -> None:
    for name, width in (("req-1", 2), ("req-2", 3)):
        bench.open(name)
        bench.router.route(name, StageOutput({"drawer": {"pooled": hidden(1, width=width)}}))
    bench.flush()
    assert [chunk.arrays["pooled"].shape for chunk in bench.arrived("drawer")] == [(1, 2), (1, 3)]


def test_a_whole_array_travels_beside_the_rows_and_once(bench: Bench) -> None:
    bench.open(consumers=("talker",))
    summary = np.ones((1, 3), np.float32)
    bench.router.route("req-1", StageOutput({"talker": {**GOOD.handoff["talker"], "summary": summary}}))
    bench.flush()
    bench.router.route("req-1", GOOD)
    bench.flush()
    first, second = bench.arrived("talker")
    assert first.arrays["summary"].tolist() == [[1.0, 1.0, 1.0]]
    assert {spec.key: spec.per_row for spec in first.header.form.tensors} == {
        "hidden": True,
        "token": True,
        "summary": False,
    }
    assert set(second.arrays) == {"hidden", "token"}


def test_output_for_lanes_that_the_request_has_not_bound_is_dropped(bench: Bench) -> None:
    assert bench.open(consumers=("talker",), client="") == {"talker"}
    output = StageOutput({"drawer": {"pooled": hidden(1)}, **GOOD.handoff}, GOOD.client, finished=True)
    bench.router.route("req-1", output)
    bench.flush()
    assert len(bench.arrived("talker")) == 1
    assert bench.arrived("drawer") == []
    assert bench.outlet.sent == []
    assert bench.router.is_drained("req-1")


def test_an_end_reaches_every_edge_and_the_client_even_without_any_payload(bench: Bench) -> None:
    bench.open()
    end = StageOutput(finished=True, finish_reason="length", usage=Usage(num_output_tokens=7))
    bench.router.route("req-1", end)
    bench.flush()
    for consumer in ("talker", "drawer"):
        (chunk,) = bench.arrived(consumer)
        assert (chunk.header.flags, chunk.header.rows, chunk.header.seq) == (ChunkFlag.END, 0, 0)
    assert bench.said() == [OutputEnd("length", Usage(num_output_tokens=7))]
    assert bench.router.is_drained("req-1")


def test_an_error_reaches_every_edge_and_the_client_once_and_nothing_follows_it(bench: Bench) -> None:
    bench.open()
    bench.router.route("req-1", GOOD)
    bench.router.fail("req-1", ReplicaDiedError("gone"))
    bench.router.fail("req-1", StageError("later"))
    bench.router.route("req-1", StageOutput(GOOD.handoff, GOOD.client, finished=True))
    for _ in range(3):
        bench.flush()
    for consumer in ("talker", "drawer"):
        (chunk,) = bench.arrived(consumer)
        assert (chunk.header.flags, chunk.header.rows) == (ChunkFlag.ERROR, 0)
        assert chunk.header.error is not None and chunk.header.error.kind == "ReplicaDiedError"
        assert chunk.header.error.message == "gone"
    first, second = bench.said()
    assert first == TokenDelta([5, 6])
    assert isinstance(second, OutputError) and second.error.message == "gone"


def test_an_error_after_the_end_changes_nothing(bench: Bench) -> None:
    bench.open()
    bench.router.route("req-1", StageOutput(finished=True))
    bench.flush()
    bench.router.fail("req-1", StageError("later"))
    bench.flush()
    assert [chunk.header.flags for chunk in bench.arrived("talker")] == [ChunkFlag.END]
    assert bench.said() == [OutputEnd()]


def test_an_abort_is_marked_as_such_on_every_edge(bench: Bench) -> None:
    bench.open()
    bench.router.fail("req-1", StageError("its client has gone"), ChunkFlag.ABORT)
    bench.flush()
    assert [chunk.header.flags for chunk in bench.arrived("drawer")] == [ChunkFlag.ABORT]


def test_one_step_makes_one_frame_per_api_server(bench: Bench) -> None:
    bench.open("req-1", client="ipc://one")
    bench.open("req-2", client="ipc://two")
    bench.open("req-3", client="ipc://one")
    for name in ("req-1", "req-2", "req-3", "req-1"):
        bench.router.route(name, StageOutput(client=(TokenDelta([int(name[-1])]),)))
    bench.flush()
    bench.flush()
    told = {address: [(a.request_id, a.outputs) for a in frame.addressed] for address, frame in bench.outlet.sent}
    assert len(bench.outlet.sent) == 2
    assert told == {
        "ipc://one": [("req-1", [TokenDelta([1, 1])]), ("req-3", [TokenDelta([3])])],
        "ipc://two": [("req-2", [TokenDelta([2])])],
    }
    assert {frame.replica for _, frame in bench.outlet.sent} == {"thinker/0"}


def test_an_api_server_that_does_not_read_fails_the_requests_whose_outputs_are_lost_and_no_others(bench: Bench) -> None:
    bench.open("req-1")
    bench.open("req-2")
    bench.router.route("req-2", GOOD)
    bench.flush()
    bench.outlet.is_full = True
    bench.router.route("req-1", GOOD)
    bench.flush()
    assert len(bench.arrived("talker")) == 2
    failures = bench.router.failures(0.0)
    assert list(failures) == ["req-1"]
    assert "req-1: ipc://api" in failures["req-1"].message
    bench.outlet.is_full = False
    bench.router.fail("req-1", failures["req-1"])
    bench.router.route("req-2", StageOutput(finished=True))
    bench.flush()
    assert bench.said("req-1") == [], "a client that has missed an output gets nothing that would hide the gap"
    assert bench.said("req-2") == [TokenDelta([5, 6]), OutputEnd()]
    assert bench.router.failures(0.0) == {}


def test_a_request_whose_outputs_an_api_server_leaves_no_room_for_fails_by_bytes_too(bench: Bench, tmp_path) -> None:
    lane = Outlet(max_queued_bytes=1_000)
    router = OutputRouter("thinker/0", SPEC, (), {}, bench.producer, lane, deadlines_s={})
    for name in ("req-1", "req-2"):
        client = f"ipc://{tmp_path}/hangs"
        router.open(StartRequest(name, 0, "chat", RequestParams(), (), (), client))
        router.route(name, StageOutput(client=(TokenDelta([1_000] * 400),)))
        router.send()
    failures = router.failures(0.0)
    assert list(failures) == ["req-2"]
    assert "hangs does not read: 1 messages of" in failures["req-2"].message
    lane.close()


def test_a_request_is_not_drained_before_its_end_has_left_or_its_loss_is_told(bench: Bench) -> None:
    for name in ("req-1", "req-2"):
        bench.open(name, consumers=())
        bench.router.route(name, StageOutput(finished=True))
        bench.router.flush()
        assert not bench.router.is_drained(name), "its end waits in a frame"
        bench.outlet.is_full = name == "req-2"
        bench.router.send()
    assert bench.router.is_drained("req-1")
    assert not bench.router.is_drained("req-2"), "its end is lost, and nobody knows"
    assert list(bench.router.failures(0.0)) == ["req-2"]
    assert bench.router.is_drained("req-2")


def test_nothing_is_sent_to_an_api_server_that_has_died(bench: Bench) -> None:
    """A message to its address would open a connection again, and nothing would close that."""
    bench.open("req-1", consumers=(), client="ipc://gone")
    bench.open("req-2", consumers=())
    for name in ("req-1", "req-2"):
        bench.router.fail(name, StageError("stopped"))
    bench.router.forget_peer("ipc://gone-chunks", "ipc://gone")
    bench.router.fail("req-1", StageError("stopped"))
    bench.flush()
    assert [address for address, _ in bench.outlet.sent] == ["ipc://api"]
    assert bench.router.is_drained("req-1") and bench.router.is_drained("req-2")


def test_a_wait_for_credit_has_a_deadline_and_its_error_names_edge_chunk_replica_and_setting() -> None:
    bench = Bench(arena_bytes=256)
    bench.open("req-1", consumers=("drawer",), client="")
    for _ in range(12):
        bench.router.route("req-1", StageOutput({"drawer": {"pooled": hidden(1, width=16)}}))
    assert bench.flush() == {"req-1": True}
    assert bench.router.failures(100.0) == {}
    bench.arrived("drawer")
    bench.flush()  # room for some chunks: the wait of those behind them begins anew
    assert bench.router.failures(109.0) == {}
    bench.flush()
    assert bench.router.failures(118.0) == {}
    (error,) = bench.router.failures(120.0).values()
    assert isinstance(error, HandoffTimeoutError)
    for word in ("thinker->drawer", "chunk 8 of req-1", "drawer/0", "10 s", "edges.thinker->drawer.deadline_s"):
        assert word in error.message
    bench.router.fail("req-1", error)
    bench.flush()
    assert bench.router.failures(500.0) == {}
    assert bench.arrived("drawer")[-1].header.flags == ChunkFlag.ERROR
    assert bench.router.is_drained("req-1")
    for connector in bench.connectors:
        connector.close()


def test_nothing_is_sent_to_a_consumer_that_has_died_and_the_other_edge_ends_as_it_should(bench: Bench) -> None:
    bench.open()
    bench.router.route("req-1", GOOD)
    bench.router.route("req-1", StageOutput({"drawer": {"pooled": hidden(2)}}))
    bench.flush()
    bench.router.forget_peer(bench.drawer.address)
    assert bench.producer.num_held("req-1") == 1
    bench.router.fail("req-1", ReplicaDiedError("drawer/0 died"), ChunkFlag.ABORT)
    bench.flush()
    assert [chunk.header.flags for chunk in bench.arrived("talker")] == [0, ChunkFlag.ABORT]
    assert [chunk.header.flags for chunk in bench.arrived("drawer")] == [0]
    assert bench.router.is_drained("req-1")


def test_rows_for_a_consumer_whose_process_has_ended_are_not_kept(bench: Bench) -> None:
    bench.open()
    bench.router.route("req-1", StageOutput({"drawer": {"pooled": hidden(2)}}))
    bench.router.forget_peer(bench.drawer.address)
    rows = hidden(2)
    kept = weakref.ref(rows)
    bench.router.route("req-1", StageOutput({"drawer": {"pooled": rows}}, first_rows={"drawer": 1}))
    del rows
    assert kept() is None


def test_rows_that_an_engine_makes_again_are_dropped_per_consumer(bench: Bench) -> None:
    bench.open()

    def made(first: int, count: int, **first_rows: int) -> StageOutput:
        rows = np.repeat(np.arange(first, first + count, dtype=np.float32)[:, None], 4, axis=1)
        return StageOutput({"drawer": {"pooled": rows}}, first_rows=first_rows)

    for output in (made(0, 5), made(2, 2, drawer=2), made(4, 4, drawer=4), made(8, 1)):
        bench.router.route("req-1", output)
        bench.flush()
    chunks = bench.arrived("drawer")
    values = np.concatenate([chunk.arrays["pooled"] for chunk in chunks])[:, 0]
    assert values.tolist() == list(range(9))
    with pytest.raises(StageError, match="row 12 came where 9 was next"):
        bench.router.route("req-1", made(12, 1, drawer=12))


def test_a_request_is_blocked_while_an_edge_has_no_credit_and_drained_when_all_is_released() -> None:
    bench = Bench(arena_bytes=256)
    bench.open("req-1", consumers=("drawer",), client="")
    bench.open("req-2", consumers=("talker",), client="")
    for _ in range(6):
        bench.router.route("req-1", StageOutput({"drawer": {"pooled": hidden(1, width=16)}}))
        blocked = bench.flush()
    assert blocked == {"req-1": True}
    bench.router.route("req-1", StageOutput(finished=True))
    assert not bench.router.is_drained("req-1")
    received = []
    for _ in range(10):
        received += bench.arrived("drawer")
        blocked = bench.flush()
    assert blocked == {}, "it has nothing more to put"
    assert sum(chunk.header.rows for chunk in received) == 6
    assert bench.router.is_drained("req-1")
    bench.router.close("req-1")
    assert bench.flush() == {}
    for connector in bench.connectors:
        connector.close()


@pytest.mark.parametrize(
    ("spec", "array", "expected"),
    [
        (OutputSpec("x", Lane.HANDOFF, "float32", (None, 2)), np.zeros((3, 9, 2), np.float32), ""),
        (OutputSpec("x", Lane.HANDOFF, "bfloat16", (2,)), np.zeros((1, 2), np.uint16), ""),
        (OutputSpec("x", Lane.HANDOFF, "uint8"), np.zeros(0, np.uint8), ""),
        (OutputSpec("x", Lane.HANDOFF, "bfloat16", (2,)), np.zeros((1, 2), np.float32), "expected uint16 [n, 2]"),
        (OutputSpec("x", Lane.HANDOFF, "float32", (None, 2)), np.zeros((3, 2), np.float32), "[n, any, 2]"),
        (OutputSpec("x", Lane.HANDOFF, "uint8"), np.array(1, np.uint8), "'x' is uint8 []"),
    ],
)
def test_an_array_fits_its_declaration_or_the_error_shows_both(spec: OutputSpec, array, expected: str) -> None:
    if not expected:
        return DeclaredOutput(spec).check("req-1", "thinker", array)
    with pytest.raises(UndeclaredOutputError) as caught:
        DeclaredOutput(spec).check("req-1", "thinker", array)
    assert expected in caught.value.message


def test_the_kind_of_audio_is_checked_like_any_other(bench: Bench) -> None:
    bench.open()
    with pytest.raises(UndeclaredOutputError, match="AudioChunk"):
        bench.router.route("req-1", StageOutput(client=(AudioChunk(b"", 24_000),)))


def counted(bench: Bench, name: str) -> dict[str, float]:
    """Labels but the replica -> value."""
    counters = [counter for counter in bench.router.counters() if counter.name == name]
    assert all(dict(counter.labels)["replica"] == "thinker/0" for counter in counters)
    return {"/".join(value for key, value in c.labels if key != "replica"): c.value for c in counters}


def test_what_is_sent_is_counted_per_edge_and_per_api_server(bench: Bench) -> None:
    bench.open()
    bench.router.route("req-1", GOOD)
    bench.router.flush()
    bench.router.route("req-1", StageOutput(client=(TokenDelta([7]),), finished=True))
    bench.flush()
    assert counted(bench, "edge_chunks_total") == {"thinker->talker": 2, "thinker->drawer": 1}
    assert counted(bench, "edge_rows_total") == {"thinker->talker": 2, "thinker->drawer": 0}
    assert counted(bench, "edge_bytes_total") == {"thinker->talker": 2 * (16 + 8), "thinker->drawer": 0}
    assert counted(bench, "edge_send_seconds_total")["thinker->talker"] > 0
    assert counted(bench, "edge_oldest_unreleased_s")["thinker->talker"] > 0
    assert [frame.num_sent for _, frame in bench.outlet.sent] == [2], "joined tokens, and the end"
    assert list(counted(bench, "client_messages_sent_total").values()) == [2]
    bench.arrived("talker")
    assert counted(bench, "edge_oldest_unreleased_s")["thinker->talker"] == 0
    ((address, _),) = bench.outlet.sent
    bench.router.forget_peer("nobody", address)
    assert counted(bench, "client_messages_sent_total") == {}, "what it has not read is gone with it"


def test_the_time_in_which_a_request_waits_for_credit_is_counted_on_its_edge_and_no_other() -> None:
    bench = Bench(arena_bytes=256)
    bench.open("req-1", consumers=("drawer",), client="")
    for _ in range(6):
        bench.router.route("req-1", StageOutput({"drawer": {"pooled": hidden(1, width=16)}}))
        bench.flush()
    waited_s = counted(bench, "edge_wait_seconds_total")["thinker->drawer"]
    bench.flush()
    assert counted(bench, "edge_wait_seconds_total")["thinker->drawer"] > waited_s
    assert counted(bench, "edge_wait_seconds_total")["thinker->talker"] == 0
    assert counted(bench, "credit_wait_seconds_total") == {
        "": counted(bench, "edge_wait_seconds_total")["thinker->drawer"]
    }
    for _ in range(10):
        bench.arrived("drawer")
        bench.flush()
    waited_s = counted(bench, "credit_wait_seconds_total")[""]
    bench.flush()
    assert counted(bench, "credit_wait_seconds_total")[""] == waited_s
    for connector in bench.connectors:
        connector.close()


def test_rows_that_the_connector_cannot_carry_end_their_request_and_no_other() -> None:
    deep = (1,) * 40
    bench = Bench()
    spec = replace(SPEC, outputs=(*SPEC.outputs, OutputSpec("deep", Lane.HANDOFF, "float32", deep)))
    edge = replace(DRAWER, keys=(*DRAWER.keys, "deep"))
    bench.router = OutputRouter(
        "thinker/0", spec, (TALKER, edge), PLANS, bench.producer, bench.outlet, deadlines_s=DEADLINES_S
    )
    bench.open("req-1", consumers=("drawer",))
    bench.open("req-2", consumers=("talker",))
    bench.router.route("req-1", StageOutput({"drawer": {"deep": np.zeros((1, *deep), np.float32)}}, finished=True))
    bench.router.route("req-2", GOOD)
    bench.flush()
    (failed,) = bench.router.failures(0.0).items()
    assert failed[0] == "req-1" and "impossible shape" in str(failed[1])
    bench.router.fail("req-1", failed[1])
    bench.flush()
    (last,) = bench.arrived("drawer")
    assert last.header.flags == ChunkFlag.ERROR
    assert bench.router.failures(0.0) == {}
    assert len(bench.arrived("talker")) > 0
    for connector in bench.connectors:
        connector.close()


def test_a_request_whose_client_cannot_be_reached_for_want_of_a_descriptor_fails_at_once(tmp_path: Path) -> None:
    lane, inlet = Outlet(), FrameInlet(f"ipc://{tmp_path}/api")
    inlet.startup()
    producer = InprocConnector("unreached", arena_bytes=1 << 20)
    producer.startup()
    router = OutputRouter("thinker/0", SPEC, (), {}, producer, lane, deadlines_s={})
    with only_more_descriptors(0):
        router.open(StartRequest("req-1", 0, "chat", RequestParams(), (), (), inlet.address))
    (error,) = router.failures(0.0).values()
    assert "thinker/0: req-1: no connection to" in error.message and "files open" in error.message
    router.open(StartRequest("req-2", 0, "chat", RequestParams(), (), (), inlet.address))
    assert router.failures(0.0) == {} and lane.counters.num_unreached == 1
    for owner in (lane, inlet, producer):
        owner.close()
