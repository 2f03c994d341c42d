"""EngineClient over real sockets and shared memory, against an orchestrator and replicas played by the test."""

import asyncio
import os
import resource
import time

import numpy as np
import pytest

from antiphon.client import engine_client
from antiphon.client.engine_client import EngineClient
from antiphon.client.output_stream import OutputStream, StageMessage
from antiphon.config.pipeline import Modality
from antiphon.errors import (
    AntiphonError,
    DeadlyRequestError,
    HandoffTimeoutError,
    InvalidRequestError,
    OverloadedError,
    ReplicaDiedError,
    RequestTooLargeError,
    StageError,
    TimeLimitError,
)
from antiphon.messages.client import Addressed, AudioChunk, ClientFrame, OutputEnd, OutputError, RawRows, TextDelta
from antiphon.messages.control import (
    AbortRequest,
    AdmissionNews,
    Counter,
    PeerDied,
    RequestFailed,
    RequestRejected,
    RequestReleased,
    StatsReport,
    SubmitRequest,
)
from antiphon.messages.error_info import to_info
from antiphon.messages.interstage import ChunkFlag
from antiphon.messages.params import SamplingParams
from antiphon.messages.report_parts import ReportGatherer, parts_of
from antiphon.messages.tasks import ChatInput, ChatMessage, Sound, SpeechInput, TaskInput, TranscriptionInput
from tests.descriptors import only_more_descriptors
from tests.unit.client.conftest import Stage, until

pytestmark = pytest.mark.anyio
PCM = AudioChunk(b"\1\2\3\4", 24_000)
HELLO = SpeechInput("hello there", voice="nova", seed=4)
PATIENCE_S = 20.0


async def submitted(stage, task_input: TaskInput = HELLO) -> tuple[str, asyncio.Task[OutputStream]]:
    """A request that the orchestrator has heard of, and the submit that waits."""
    submitting = asyncio.create_task(stage.client.submit(task_input))
    request = await stage.hears(SubmitRequest)
    return request.request_id, submitting


async def running(stage, task_input: TaskInput = HELLO) -> tuple[str, OutputStream]:
    """A request that has been accepted."""
    request_id, submitting = await submitted(stage, task_input)
    stage.accepts(request_id)
    return request_id, await submitting


async def outcome(stream: OutputStream) -> tuple[list[StageMessage], AntiphonError | None]:
    messages = []
    try:
        async for message in stream:
            messages.append(message)
    except AntiphonError as error:
        return messages, error
    return messages, None


async def test_a_request_is_submitted_accepted_fed_answered_and_released(stage) -> None:
    submitting = asyncio.create_task(stage.client.submit(HELLO, request_id="req-mine"))
    request = await stage.hears(SubmitRequest)
    assert (request.request_id, request.api_server, request.task) == ("req-mine", "api-server/0", "speech")
    assert (request.inputs, request.outputs) == ({Modality.TEXT}, {Modality.AUDIO})
    assert (request.params.speech.voice, request.params.speech.seed) == ("heart", 4)
    assert not submitting.done()
    stage.accepts("req-mine")
    stream = await submitting
    (chunk,) = await stage.chunks()
    assert chunk.header.form.edge == "client->talker"
    assert (chunk.header.form.request_id, chunk.header.form.producer) == ("req-mine", "api-server/0")
    assert chunk.header.flags == ChunkFlag.END
    assert chunk.arrays["text"].tobytes() == b"hello there"
    stage.entry.release(chunk)
    stage.says("req-mine", PCM)
    assert await anext(stream) == StageMessage("code2wav", PCM)
    stage.says("req-mine", PCM, OutputEnd())
    assert await outcome(stream) == ([StageMessage("code2wav", PCM), StageMessage("code2wav", OutputEnd())], None)
    assert stage.client.num_open == 1, "its replicas have not released it"
    stage.tells(RequestReleased("req-mine"))
    await stage.holds_nothing()


async def test_the_input_of_a_large_request_is_sent_as_credit_comes_back(stage) -> None:
    samples = np.arange(600_000, dtype=np.float32)  # 2.4 MB through an arena of 1 MiB
    request_id, _ = await running(stage, TranscriptionInput(samples))
    arrived: list[float] = []
    is_last = False
    while not is_last:
        chunk = stage.entry.get()
        if chunk is None:
            await asyncio.sleep(0.002)
            continue
        arrived += chunk.arrays["audio"].tolist() if chunk.header.rows else []
        is_last = chunk.header.is_terminal
        stage.entry.release(chunk)
        stage.entry.flush()
    assert arrived == samples.tolist()
    assert chunk.header.form.request_id == request_id and chunk.header.seq >= 2


async def test_raw_rows_are_counted_and_never_reach_the_stream(stage) -> None:
    request_id, stream = await running(stage)
    stage.says(
        request_id, RawRows("hidden", "uint16", (2, 3), bytes(12)), PCM, RawRows("hidden", "uint16", (1, 3), bytes(6))
    )
    stage.says(request_id, OutputEnd())
    assert await outcome(stream) == ([StageMessage("code2wav", PCM), StageMessage("code2wav", OutputEnd())], None)
    assert [counter.value for counter in stage.client.counters() if counter.name == "raw_rows_bytes_total"] == [18.0]


async def test_a_rejected_request_raises_what_the_orchestrator_says_and_is_gone(stage) -> None:
    request_id, submitting = await submitted(stage)
    stage.tells(RequestRejected(request_id, to_info(OverloadedError("full", retry_after_s=7.0))))
    with pytest.raises(OverloadedError, match="full") as raised:
        await submitting
    assert raised.value.retry_after_s == 7.0
    await stage.holds_nothing()


@pytest.mark.parametrize(
    ("task_input", "kind"),
    [
        (SpeechInput(" "), InvalidRequestError),
        (TranscriptionInput(np.zeros(1801 * 16_000, np.float32)), RequestTooLargeError),
        (ChatInput((ChatMessage("user", "Hi."),), SamplingParams(stop=("x" * 33_000,))), InvalidRequestError),
    ],
)
async def test_a_bad_input_is_refused_before_anything_is_sent(stage, task_input: TaskInput, kind: type) -> None:
    with pytest.raises(kind):
        await stage.client.submit(task_input)
    await stage.holds_nothing()


async def test_an_id_in_use_is_refused_and_the_request_that_has_it_goes_on(stage) -> None:
    request_id, stream = await running(stage)
    with pytest.raises(InvalidRequestError, match=f"{request_id} is in use"):
        await stage.client.submit(HELLO, request_id=request_id)
    stage.says(request_id, OutputEnd())
    assert await outcome(stream) == ([StageMessage("code2wav", OutputEnd())], None)


async def test_outputs_that_come_after_the_release_are_not_lost(stage) -> None:
    request_id, stream = await running(stage)
    stage.tells(RequestReleased(request_id))
    stage.tells(StatsReport("mark", ()))
    other_id, other = await submitted(stage)
    stage.tells(RequestRejected(other_id, to_info(OverloadedError("full"))))
    with pytest.raises(OverloadedError):
        await other  # so the release has been read
    assert stage.client.num_open == 1
    stage.says(request_id, PCM, OutputEnd())
    assert await outcome(stream) == ([StageMessage("code2wav", PCM), StageMessage("code2wav", OutputEnd())], None)
    await stage.holds_nothing()


async def test_an_input_that_can_never_be_sent_fails_its_request(stage) -> None:
    """The conversation goes in one piece beside the audio, and a chunk has a quarter of the arena's 1 MiB."""
    message = ChatMessage("user", ("x" * 300_000, Sound(np.zeros(16_000, np.float32))))
    request_id, stream = await running(stage, ChatInput((message,)))
    messages, error = await outcome(stream)
    assert messages == []
    assert isinstance(error, StageError) and "raise connector.arena_mib" in error.message
    assert await stage.hears(AbortRequest) == AbortRequest(request_id, "its input does not fit")
    stage.tells(RequestReleased(request_id))
    await stage.holds_nothing()


async def test_two_requests_get_their_own_outputs_of_one_frame(stage) -> None:
    streams = dict([await running(stage), await running(stage)])
    for number, request_id in enumerate(streams):
        stage.says(request_id, AudioChunk(bytes([number, 0]), 24_000), OutputEnd())
    for number, stream in enumerate(streams.values()):
        messages, error = await outcome(stream)
        assert error is None
        assert messages[0].output == AudioChunk(bytes([number, 0]), 24_000)


async def test_leaving_a_stream_aborts_its_request_once(stage) -> None:
    request_id, stream = await running(stage)
    await stream.aclose()
    await stream.aclose()
    assert await stage.hears(AbortRequest) == AbortRequest(request_id, "its client has gone")
    assert stage.client.num_open == 1, "until its replicas have released it"
    stage.says(request_id, PCM)
    stage.tells(RequestReleased(request_id))
    await stage.holds_nothing()


async def test_a_stream_that_is_left_after_the_release_needs_no_abort(stage) -> None:
    request_id, stream = await running(stage)
    stage.tells(RequestReleased(request_id))
    other_id, other = await submitted(stage)
    stage.tells(RequestRejected(other_id, to_info(OverloadedError("full"))))
    with pytest.raises(OverloadedError):
        await other
    await stream.aclose()
    await stage.holds_nothing()


async def test_a_failed_request_raises_after_its_outputs_and_is_gone_when_released(stage) -> None:
    request_id, stream = await running(stage)
    stage.says(request_id, PCM)
    assert (await anext(stream)).output == PCM
    stage.tells(RequestFailed(request_id, to_info(ReplicaDiedError("talker/0 died"))))
    messages, error = await outcome(stream)
    assert messages == []
    assert type(error) is ReplicaDiedError and error.message == "talker/0 died"
    stage.tells(RequestReleased(request_id))
    await stage.holds_nothing()


@pytest.mark.parametrize("is_running", [True, False])
async def test_a_submit_that_is_cancelled_aborts_and_leaves_nothing(stage, is_running: bool) -> None:
    request_id, submitting = await submitted(stage)
    submitting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await submitting
    assert await stage.hears(AbortRequest) == AbortRequest(request_id, "its client has gone")
    if is_running:  # the orchestrator bound it before the abort came
        stage.accepts(request_id)
        stage.tells(RequestReleased(request_id))
    else:
        stage.tells(RequestRejected(request_id, to_info(StageError("aborted"))))
    await stage.holds_nothing()


async def test_closing_the_client_aborts_what_is_open_and_fails_what_waits(stage) -> None:
    _, stream = await running(stage)
    _, submitting = await submitted(stage)
    await stage.close_client()
    with pytest.raises(ReplicaDiedError, match="shutting down"):
        await submitting
    stopped, error = await outcome(stream)
    assert stopped == [] and isinstance(error, ReplicaDiedError), "an answer that was cut off has not ended"
    assert stage.client.num_open == 0
    assert len([await stage.hears(AbortRequest), await stage.hears(AbortRequest)]) == 2


async def test_when_the_server_behind_it_is_gone_every_request_fails(stage) -> None:
    _, stream = await running(stage)
    _, submitting = await submitted(stage)
    stage.client.fail_all(ReplicaDiedError("the orchestrator died"))
    with pytest.raises(ReplicaDiedError, match="the orchestrator died"):
        await submitting
    _, error = await outcome(stream)
    assert error is not None and error.message == "the orchestrator died"
    assert stage.client.num_open == 0


async def test_messages_of_unknown_requests_are_ignored(stage) -> None:
    stage.tells(RequestReleased("req-nobody"))
    stage.says("req-nobody", TextDelta("hi"))
    stage.accepts("req-nobody")
    request_id, stream = await running(stage)
    stage.says(request_id, OutputEnd())
    assert await outcome(stream) == ([StageMessage("code2wav", OutputEnd())], None)


async def test_readiness_is_that_of_the_last_report(stage) -> None:
    assert stage.client.live_replicas() == {"listener": 0, "thinker": 0, "talker": 0, "code2wav": 0}
    live = Counter("replicas_live", (("stage", "talker"),), 2.0)
    stage.tells(StatsReport("pools", (live,)))
    while stage.client.live_replicas()["talker"] != 2:
        await asyncio.sleep(0.002)
    assert stage.client.live_replicas()["thinker"] == 0
    assert live in list(stage.client.counters())


async def test_the_counters_of_a_process_go_with_it(stage) -> None:
    bound = Counter("requests_bound", (("replica", "talker/1"),), 2.0)
    stage.tells(StatsReport("talker/1", (bound,)))
    await until(lambda: counted(stage, "requests_bound") == 2.0)
    stage.tells(PeerDied("talker/1", "ipc://nowhere"))
    await until(lambda: counted(stage, "requests_bound") == 0.0)


async def test_a_request_that_is_not_admitted_in_time_is_aborted_and_says_what_to_raise(impatient_stage) -> None:
    stage = impatient_stage
    request_id, submitting = await submitted(stage)
    with pytest.raises(HandoffTimeoutError, match=r"not admitted in 0\.05 s; raise admission.max_inflight"):
        await submitting
    assert await stage.hears(AbortRequest) == AbortRequest(request_id, "it was not admitted in time")
    stage.tells(RequestRejected(request_id, to_info(StageError("aborted"))))
    await stage.holds_nothing()


def counted(stage, name: str) -> float:
    """A counter of the client's own."""
    return sum(counter.value for counter in stage.client.counters() if counter.name == name)


DIED = to_info(ReplicaDiedError("talker/0 died"))


async def restarted(stage) -> tuple[str, OutputStream]:
    """A request whose replica has died before any output, and whose second start the orchestrator has heard of."""
    request_id, stream = await running(stage)
    (chunk,) = await stage.chunks()
    stage.entry.release(chunk)
    stage.tells(RequestFailed(request_id, DIED))
    stage.says(request_id, OutputError(DIED))
    stage.tells(RequestReleased(request_id))
    again = await stage.hears(SubmitRequest)
    assert (again.request_id, again.epoch) == (request_id, 1)
    return request_id, stream


async def test_a_request_whose_replica_dies_before_any_output_is_started_again_unnoticed(stage) -> None:
    request_id, stream = await restarted(stage)
    stage.accepts(request_id, epoch=1)
    (chunk,) = await stage.chunks()
    assert (chunk.header.form.epoch, chunk.arrays["text"].tobytes()) == (1, b"hello there")
    stage.entry.release(chunk)
    stage.says(request_id, TextDelta("late news of the first start"), OutputEnd())
    stage.says(request_id, PCM, OutputEnd(), epoch=1)
    messages, error = await outcome(stream)
    assert ([message.output for message in messages], error) == ([PCM, OutputEnd()], None)
    stage.tells(RequestReleased(request_id))
    await stage.holds_nothing()


async def test_one_death_that_is_told_on_both_lanes_starts_the_request_again_once(stage) -> None:
    request_id, stream = await running(stage)
    stage.says(request_id, OutputError(DIED))
    await until(lambda: counted(stage, "requests_restarted_total") == 1)
    stage.tells(RequestFailed(request_id, DIED))
    stage.tells(RequestReleased(request_id))
    assert (await stage.hears(SubmitRequest)).epoch == 1
    stage.accepts(request_id, epoch=1)
    for chunk in await stage.chunks():
        stage.entry.release(chunk)
    stage.says(request_id, PCM, OutputEnd(), epoch=1)
    messages, error = await outcome(stream)
    assert ([message.output for message in messages], error) == ([PCM, OutputEnd()], None)
    stage.tells(RequestReleased(request_id))
    await stage.holds_nothing()


async def test_a_request_that_is_the_likely_cause_of_the_second_death_is_not_started_a_third_time(stage) -> None:
    request_id, stream = await restarted(stage)
    stage.accepts(request_id, epoch=1)
    stage.tells(RequestFailed(request_id, to_info(DeadlyRequestError("talker/0 died again"))))
    messages, error = await outcome(stream)
    assert messages == [] and type(error) is DeadlyRequestError and error.http_status == 502
    stage.tells(RequestReleased(request_id))
    await stage.holds_nothing()


async def test_a_second_death_that_is_anothers_doing_starts_the_request_again_and_a_third_one_ends_it(stage) -> None:
    request_id, stream = await restarted(stage)
    stage.accepts(request_id, epoch=1)
    await asyncio.sleep(0.02)
    stage.tells(RequestFailed(request_id, DIED))
    stage.tells(RequestReleased(request_id))
    third = await stage.hears(SubmitRequest)
    assert (third.epoch, third.is_restart) == (2, True) and 0.02 <= third.ran_s < PATIENCE_S
    stage.accepts(request_id, epoch=2)
    stage.tells(RequestFailed(request_id, DIED))
    messages, error = await outcome(stream)
    assert messages == [] and type(error) is ReplicaDiedError
    stage.tells(RequestReleased(request_id))
    await stage.holds_nothing()


async def test_a_request_that_has_said_something_fails_with_its_replica(stage) -> None:
    request_id, stream = await running(stage)
    stage.says(request_id, PCM)
    await anext(stream)
    stage.tells(RequestFailed(request_id, DIED))
    messages, error = await outcome(stream)
    assert messages == [] and isinstance(error, ReplicaDiedError)
    stage.tells(RequestReleased(request_id))
    await stage.holds_nothing()


@pytest.mark.parametrize("when", ["before the release", "after the second start"])
async def test_a_client_that_leaves_while_its_request_is_started_again_aborts_it(stage, when) -> None:
    request_id, stream = await running(stage)
    stage.tells(RequestFailed(request_id, DIED))
    if when == "before the release":
        await until(lambda: counted(stage, "requests_restarted_total") == 1)
    else:
        stage.tells(RequestReleased(request_id))
        await stage.hears(SubmitRequest)
    await stream.aclose()
    assert (await stage.hears(AbortRequest)).request_id == request_id
    stage.tells(RequestReleased(request_id))
    await stage.holds_nothing()


async def test_a_request_that_has_ended_and_is_not_released_is_asked_after(reminding_stage) -> None:
    stage = reminding_stage
    request_id, stream = await running(stage)
    stage.says(request_id, PCM, OutputEnd())
    assert (await outcome(stream))[1] is None
    assert (await stage.hears(AbortRequest)) == AbortRequest(request_id, "it has ended and was not released in time")
    stage.tells(RequestReleased(request_id))
    await stage.holds_nothing()


async def test_once_a_second_the_orchestrator_hears_what_is_counted_here_and_other_processes_not_from_here(
    stage,
) -> None:
    stage.outlet.send(
        stage.address("api-server/0.client"),
        ClientFrame("code2wav/0", [Addressed("req-none", 0, [PCM, PCM])], 7, time.monotonic()),
    )
    own = StatsReport("api-server/0", (Counter("requests_open", (("process", "api-server/0"),), 99.0),))
    other = StatsReport("api-server/1", (Counter("requests_open", (("process", "api-server/1"),), 5.0),))
    stage.tells(own)
    stage.tells(other)
    while (consumed := await stage.reported("client_messages_consumed_total")) == {}:
        pass
    assert consumed == {"code2wav/0": 7}
    assert {each.source for each in stage.reports} == {"api-server/0"}
    seen = {
        dict(each.labels)["process"]: each.value for each in stage.client.counters() if each.name == "requests_open"
    }
    assert seen == {"api-server/0": 0, "api-server/1": 5}


async def test_what_is_counted_of_a_thousand_replicas_reaches_the_orchestrator_and_comes_back(stage) -> None:
    names = [f"code2wav/{number}" for number in range(1_000)]
    for name in names:
        frame = ClientFrame(name, [Addressed("req-none", 0, [PCM])], 3, time.monotonic())
        stage.outlet.send(stage.address("api-server/0.client"), frame)
    gatherer, heard = ReportGatherer(), dict[str, float]()
    while len(heard) < len(names):
        await stage.reported("client_messages_consumed_total")
        for report in filter(None, map(gatherer.take, stage.reports)):
            heard = {dict(e.labels)["replica"]: e.value for e in report.counters if "consumed" in e.name}
    assert heard == dict.fromkeys(names, 3.0)
    bound = tuple(Counter("replica_inflight", (("replica", name),), 2.0) for name in names)
    for part in parts_of("pools", bound):
        stage.tells(part)
    await until(lambda: counted(stage, "replica_inflight") == 2.0 * len(names))


async def test_a_name_that_no_control_message_has_room_for_is_refused(stage) -> None:
    for given in ({"request_id": "r" * 70_000}, {"client": "c" * 70_000}):
        with pytest.raises(InvalidRequestError, match="at most 1000 characters"):
            await stage.client.submit(HELLO, **given)
    await stage.holds_nothing()


async def test_a_replica_for_whose_connection_there_was_no_descriptor_is_heard_when_there_is_one(stage) -> None:
    request_id, stream = await running(stage)
    stage.says(request_id, PCM, OutputEnd())
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free_fd = os.open(os.devnull, os.O_RDONLY)
    os.close(free_fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free_fd, limits[1]))
    try:
        await asyncio.sleep(0.05)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    async with asyncio.timeout(PATIENCE_S):
        assert [each.output for each in (await outcome(stream))[0]] == [PCM, OutputEnd()]
    stage.tells(RequestReleased(request_id))
    await stage.holds_nothing()


async def test_a_request_whose_entry_replica_cannot_be_reached_for_want_of_a_descriptor_fails_at_once(stage) -> None:
    stage.tells(StatsReport("pools", (Counter("replica_inflight", (("replica", "talker/0"),), 1.0),)))
    await until(lambda: counted(stage, "replica_inflight") == 1.0)  # the orchestrator's connection is there
    request_id, submitting = await submitted(stage)
    with only_more_descriptors(0):
        stage.accepts(request_id)
        stream = await asyncio.wait_for(submitting, PATIENCE_S)
    messages, error = await outcome(stream)
    assert messages == [] and isinstance(error, StageError)
    assert "no connection to" in error.message and "files open" in error.message
    assert (await stage.hears(AbortRequest)).request_id == request_id
    unreached = {dict(e.labels)["lane"]: e.value for e in stage.client.counters() if e.name == "lane_unreached_total"}
    assert unreached["chunks"] == 1
    stage.tells(RequestReleased(request_id))
    await stage.holds_nothing()


async def test_a_whole_answer_is_started_again_whatever_its_first_start_has_said(stage) -> None:
    submitting = asyncio.create_task(stage.client.submit(HELLO, is_whole=True))
    request_id = (await stage.hears(SubmitRequest)).request_id
    stage.accepts(request_id)
    stream = await submitting
    stage.says(request_id, PCM, PCM)
    await until(lambda: stream.backlog_bytes == 2 * len(PCM.pcm))
    stage.tells(RequestFailed(request_id, DIED))
    stage.tells(RequestReleased(request_id))
    assert (await stage.hears(SubmitRequest)).is_restart
    stage.accepts(request_id, epoch=1)
    taking = asyncio.create_task(outcome(stream))
    stage.says(request_id, PCM, epoch=1)
    await until(lambda: stream.backlog_bytes == len(PCM.pcm))
    assert not taking.done()
    stage.says(request_id, OutputEnd(), epoch=1)
    messages, error = await taking
    assert ([message.output for message in messages], error) == ([PCM, OutputEnd()], None)
    stage.tells(RequestReleased(request_id))
    await stage.holds_nothing()


async def test_a_request_whose_end_is_lost_with_its_replica_fails(stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "_LAST_WORDS_S", 0.1)
    request_id, stream = await running(stage)
    stage.says(request_id, PCM)
    stage.tells(RequestReleased(request_id))
    messages, error = await outcome(stream)
    assert [message.output for message in messages] == [PCM]
    assert isinstance(error, ReplicaDiedError) and "its end was lost" in error.message
    await stage.holds_nothing()


async def test_a_request_is_submitted_for_its_client_and_waits_until_it_is_accepted(stage):
    client = stage.client
    submitting = asyncio.create_task(client.submit(SpeechInput("Hello."), request_id="req-1", client="a"))
    assert (await stage.hears(SubmitRequest)).client == "a"
    stage.tells(AdmissionNews(num_inflight=1, num_queued=1, max_waiting=1, retry_after_s=2.0))
    await until(lambda: is_refused(client, "a"))
    assert not is_refused(client, "b")
    stage.accepts("req-1")
    async with await submitting as stream:
        assert not is_refused(client, "a")
        stage.tells(RequestReleased("req-1"))
        stage.says("req-1", OutputEnd())
        assert [message async for message in stream]
    await stage.holds_nothing()


def is_refused(client: EngineClient, name: str) -> bool:
    try:
        client.admission.check(name)
    except OverloadedError:
        return True
    return False


async def test_a_request_that_takes_too_long_is_aborted_and_keeps_what_it_has(directory) -> None:
    stage = Stage(directory, max_request_s=0.3)
    await stage.startup()
    request_id, stream = await running(stage)
    stage.says(request_id, PCM)
    messages, error = await outcome(stream)
    assert isinstance(error, TimeLimitError)
    assert "0.3 s" in error.message
    assert [message.output for message in messages] == [PCM]
    assert isinstance(await stage.hears(AbortRequest), AbortRequest)
    stage.tells(RequestReleased(request_id))
    await stage.holds_nothing()
    await stage.close()


async def test_a_request_that_waits_too_long_for_its_place_is_aborted(directory) -> None:
    stage = Stage(directory, max_request_s=0.05)
    await stage.startup()
    request_id, submitting = await submitted(stage)
    with pytest.raises(TimeLimitError):
        await submitting
    assert isinstance(await stage.hears(AbortRequest), AbortRequest)
    stage.tells(RequestRejected(request_id, to_info(StageError("aborted"))))
    await stage.holds_nothing()
    await stage.close()


async def test_the_time_of_a_part_counts_from_the_beginning_of_the_whole(directory) -> None:
    stage = Stage(directory, max_request_s=1_000)
    await stage.startup()
    speech = SpeechInput("the last part of a long text")
    submitting = asyncio.create_task(stage.client.submit(speech, began_s=time.monotonic() - 1_000))
    request_id = (await stage.hears(SubmitRequest)).request_id
    with pytest.raises(TimeLimitError, match="1000 s"):
        await submitting
    assert (await stage.hears(AbortRequest)).request_id == request_id
    stage.tells(RequestRejected(request_id, to_info(StageError("aborted"))))
    await stage.holds_nothing()
    await stage.close()


async def test_outputs_count_as_waiting_until_they_are_taken_also_when_their_request_is_over(stage) -> None:
    def backlog() -> float:
        return sum(each.value for each in stage.client.counters() if each.name == "client_backlog_bytes")

    streams = []
    for _ in range(2):
        request_id, stream = await running(stage)
        streams.append(stream)
        stage.says(request_id, PCM, OutputEnd())
        stage.tells(RequestReleased(request_id))
    await stage.holds_nothing()
    assert backlog() == 2 * streams[0].backlog_bytes > 0
    await streams[0].aclose()
    assert backlog() == streams[1].backlog_bytes > 0
    await outcome(streams[1])
    assert backlog() == 0


async def test_an_unknown_voice_is_refused_before_anything_is_sent(stage) -> None:
    with pytest.raises(InvalidRequestError, match="there is no voice 'nobody'"):
        await stage.client.submit(SpeechInput("hello", voice="nobody"))
    assert stage.client.num_open == 0


@pytest.mark.parametrize("request_id", ["two\nlines", "\ud800", "nul\x00"])
async def test_an_id_that_no_log_line_can_hold_is_refused_before_anything_is_sent(stage, request_id) -> None:
    with pytest.raises(InvalidRequestError, match="printable"):
        await stage.client.submit(HELLO, request_id=request_id)
    assert stage.client.num_open == 0
