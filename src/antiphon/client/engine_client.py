"""The engine client: submits requests, sends their input, and gives each its OutputStream.

In: TaskInputs. Out: OutputStreams fed by the client lane. Does not know: HTTP, or what stages compute.
"""

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import assert_never
from weakref import WeakSet

from antiphon.client.admission_view import AdmissionView
from antiphon.client.frontend import Frontend
from antiphon.client.input_sender import InputSender
from antiphon.client.lane_meter import LaneMeter
from antiphon.client.open_request import OpenRequest
from antiphon.client.output_stream import OutputStream
from antiphon.client.own_voice import in_own_voice
from antiphon.client.text_options import TextOptions
from antiphon.config.deploy import ServerDeploy
from antiphon.config.pipeline import PipelineSpec
from antiphon.connector.base import Connector
from antiphon.errors import (
    AntiphonError,
    HandoffTimeoutError,
    InvalidRequestError,
    ReplicaDiedError,
    RequestAbortedError,
    StageError,
    TimeLimitError,
)
from antiphon.ids import new_request_id, stage_of
from antiphon.messages import codec
from antiphon.messages.bootstrap import Bootstrap
from antiphon.messages.client import Addressed, ClientFrame, OutputError, RawRows
from antiphon.messages.control import (
    STATS_INTERVAL_S,
    AbortRequest,
    AdmissionNews,
    Counter,
    Leaving,
    PeerDied,
    Ready,
    RequestAccepted,
    RequestFailed,
    RequestRejected,
    RequestReleased,
    StatsReport,
    SubmitRequest,
    ToApiServer,
)
from antiphon.messages.error_info import to_error
from antiphon.messages.params import check_size
from antiphon.messages.report_parts import ReportGatherer, parts_of
from antiphon.messages.tasks import ChatInput, TaskInput, has_media
from antiphon.monitor.counters import lane_counters
from antiphon.monitor.trace import NoTrace, Trace, open_trace
from antiphon.transport.channel import ChannelFullError, GatheringOutlet, Inlet

log = logging.getLogger(__name__)
_MAX_NAME_CHARS = 1_000
_LAST_WORDS_S = 5.0
"""How long outputs may be under way when all replicas have released their request."""


class EngineClient:
    """Owns every open request of this process: its stream, and its input until that has been sent.

    admission: what is known of it, for those who want to refuse a request before they read it.
    """

    def __init__(
        self, name: str, pipeline: PipelineSpec, frontend: Frontend, connector: Connector, bootstrap: Bootstrap
    ) -> None:
        self.name = name
        self.pipeline = pipeline
        self.run_directory = Path(bootstrap.run_directory)
        self._frontend = frontend
        self._settings: ServerDeploy = bootstrap.config.server
        self._release_s = bootstrap.config.timeouts.release_s
        self._bootstrap = bootstrap
        self._control = Inlet(bootstrap.control_address, codec.TO_API_SERVER)
        self._client_lane = Inlet(bootstrap.client_address, codec.CLIENT_FRAME)
        self._outlet = GatheringOutlet()
        self._flush_handle: asyncio.Handle | None = None
        self._sender = InputSender(name, connector)
        self._open: dict[str, OpenRequest] = {}
        self._streams = WeakSet[OutputStream]()
        """Those of open requests, and those whose request is over and whose consumer has not taken all yet."""
        self.admission = AdmissionView()
        self._epochs = itertools.count()
        self._gatherer = ReportGatherer()
        self._reports: dict[str, StatsReport] = {}
        self._num_restarted = 0
        self._since_s = time.monotonic()
        self._lane_meter = LaneMeter()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.trace: Trace = NoTrace()
        self._opened = ExitStack()
        """From `startup` on: what `close` closes."""
        self._raw_rows_bytes = 0
        self._text_options = TextOptions(pipeline, bootstrap.config)

    async def startup(self) -> None:
        """Bind the inlets, watch them from the running event loop, and tell the orchestrator.

        An error leaves nothing open.
        """
        with ExitStack() as opened:
            self._open_all(opened)
            self._say_ready()
            self._opened = opened.pop_all()

    def _open_all(self, opened: ExitStack) -> None:
        """What `opened` closes again, the last first."""
        bootstrap, loop = self._bootstrap, asyncio.get_running_loop()
        self.trace = open_trace(bootstrap.run_directory, self.name, is_on=bootstrap.is_traced)
        opened.callback(self.trace.close)
        opened.callback(self._outlet.close)
        watched: list[tuple[Inlet[ToApiServer] | Inlet[ClientFrame] | InputSender, Callable[[], None]]] = [
            (self._control, self._read_control),
            (self._client_lane, self._read_client_lane),
            (self._sender, self._sender.receive),
        ]
        for source, read in watched:
            source.startup()
            opened.callback(source.close)
            loop.add_reader(source.fileno(), read)
            opened.callback(loop.remove_reader, source.fileno())
        opened.callback(self._cancel_timers)

    def _say_ready(self) -> None:
        bootstrap = self._bootstrap
        self._tell(
            Ready(
                self.name,
                bootstrap.control_address,
                bootstrap.connector_address,
                bootstrap.client_address,
                pid=os.getpid(),
            )
        )
        self._outlet.flush()  # the loop may be busy starting for a while
        self._read_control()
        self._read_client_lane()
        self._remind()
        self._report()

    async def close(self) -> None:
        """Abort what is open and close every socket. Who still reads a stream gets ReplicaDiedError, not an end."""
        for request_id, opened in list(self._open.items()):
            if not opened.stream.ended:
                self._abort(request_id, "its client is closing")
        self.fail_all(ReplicaDiedError("the server is shutting down"))
        self._tell(Leaving(self.name))
        self._opened.close()

    def _cancel_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    def fail_all(self, error: AntiphonError) -> None:
        """End every open request with `error`: the server behind this client is gone."""
        for request_id, opened in list(self._open.items()):
            opened.end(error)
            self._forget(request_id, opened)

    async def submit(
        self,
        task_input: TaskInput,
        *,
        request_id: str = "",
        is_whole: bool = False,
        client: str = "",
        began_s: float | None = None,
    ) -> OutputStream:
        """Start a request; returns when it is bound to replicas. is_whole: see OutputStream.

        client: who asks for it; while requests wait for a place, clients take turns. began_s: when what it is a part
        of began, by time.monotonic(); server.max_request_s counts from there. None: now.

        Raises InvalidRequestError / UnsupportedModalityError / UnsupportedOptionError (nothing was sent),
        OverloadedError (not admitted), HandoffTimeoutError (the orchestrator does not answer), TimeLimitError.
        """
        if isinstance(task_input, ChatInput):
            self._text_options.check(task_input)
        task_input = in_own_voice(task_input, self.pipeline.voices)
        if has_media(task_input):  # converting them would hold up every stream of this process
            payload = await asyncio.to_thread(self._frontend.prepare, task_input)
        else:
            payload = self._frontend.prepare(task_input)
        check_size(payload.params)
        self.pipeline.route(payload.task, payload.inputs, payload.outputs)
        request_id = request_id or new_request_id()
        self._check_names(request_id, client)
        loop = asyncio.get_running_loop()
        accepted: asyncio.Future[None] = loop.create_future()
        stream = self._make_stream(request_id, is_whole=is_whole)
        opened = OpenRequest(stream, payload, accepted, next(self._epochs), client)
        self._open[request_id] = opened
        self.admission.submitted(request_id, client)
        self._start_time_limit(request_id, opened, began_s)
        self._tell(opened.submission(self.name))
        late = loop.call_later(self._settings.output_deadline_s, self._end_unadmitted, request_id, opened)
        try:
            await accepted
        except asyncio.CancelledError:
            self._give_up(request_id, "its client has gone")
            raise
        finally:
            late.cancel()
        return stream

    def _check_names(self, request_id: str, client: str) -> None:
        if max(len(request_id), len(client)) > _MAX_NAME_CHARS or not (request_id + client).isprintable():
            told = f"a request id, or a client's name, is at most {_MAX_NAME_CHARS} characters, all of them printable"
            raise InvalidRequestError(told, param="request_id")
        if request_id in self._open:
            raise InvalidRequestError(f"request id {request_id} is in use; wait until it ends or give another")

    def live_replicas(self) -> dict[str, int]:
        """Stage -> live replicas, as of the orchestrator's last report; 0 before the first."""
        live = {stage.name: 0 for stage in self.pipeline.stages}
        for counter in self.counters():
            if counter.name == "replicas_live":
                live[dict(counter.labels)["stage"]] = int(counter.value)
        return live

    def counters(self) -> Iterable[Counter]:
        """Every counter of every process, at most about a second old; this process's own are of now."""
        for report in self._reports.values():
            yield from report.counters
        yield from self._own_counters()

    def _own_counters(self) -> Iterator[Counter]:
        process = (("process", self.name),)
        yield Counter("uptime_s", process, time.monotonic() - self._since_s)
        yield Counter("requests_open", process, float(len(self._open)))
        yield Counter("requests_restarted_total", process, float(self._num_restarted))
        yield Counter("raw_rows_bytes_total", process, float(self._raw_rows_bytes))
        backlog = sum(stream.backlog_bytes for stream in self._streams)
        yield Counter("client_backlog_bytes", process, float(backlog))
        lanes = {
            "control": self._control.counters,
            "control_out": self._outlet.counters,
            "client": self._client_lane.counters,
        }
        yield from lane_counters(self.name, lanes)
        yield from self._lane_meter.counters(self.name)
        yield from self._sender.counters()

    @property
    def num_open(self) -> int:
        """Requests submitted and not released."""
        return len(self._open)

    def _start_time_limit(self, request_id: str, opened: OpenRequest, began_s: float | None) -> None:
        if limit_s := self._settings.max_request_s:
            left_s = limit_s if began_s is None else began_s + limit_s - time.monotonic()
            opened.time_limit = asyncio.get_running_loop().call_later(left_s, self._end_late, request_id, opened)

    def _end_late(self, request_id: str, opened: OpenRequest) -> None:
        """A request has run too long; what its stages have made before still reaches the consumer."""
        if opened.stream.ended:
            return
        limit_s = self._settings.max_request_s
        error = TimeLimitError(f"{request_id} took longer than {limit_s:g} s, the limit of server.max_request_s")
        self._abort(request_id, "it took longer than server.max_request_s")
        opened.end(error)

    def _end_unadmitted(self, request_id: str, opened: OpenRequest) -> None:
        if opened.accepted.done():
            return
        self._give_up(request_id, "it was not admitted in time")
        opened.settle(
            HandoffTimeoutError(
                f"{request_id} was not admitted in {self._settings.output_deadline_s:g} s; raise "
                "admission.max_inflight or server.output_deadline_s, or see the orchestrator's log"
            )
        )

    def _make_stream(self, request_id: str, *, is_whole: bool) -> OutputStream:
        stream = OutputStream(
            request_id,
            deadline_s=self._settings.output_deadline_s,
            max_backlog_bytes=self._settings.max_client_backlog_mib << 20,
            abort=self._abort,
            is_whole=is_whole,
        )
        self._streams.add(stream)
        return stream

    def _read_control(self) -> None:
        for message in self._control.receive():
            self._handle(message)
        self._sender.flush()

    def _handle(self, message: ToApiServer) -> None:
        if isinstance(message, StatsReport):
            report = self._gatherer.take(message)
            if report is not None and report.source != self.name:  # our own are newer here
                self._reports[report.source] = report
            return
        if isinstance(message, AdmissionNews):
            return self.admission.hear(message)
        if isinstance(message, PeerDied):
            self._reports.pop(message.name, None)
            self._gatherer.forget(message.name)
            self._lane_meter.forget(message.name)
            self._sender.forget_peer(message.connector_address)
            return
        opened = self._open.get(message.request_id)
        if opened is None:
            return
        match message:
            case RequestAccepted():
                self._accepted(message, opened)
            case RequestRejected(error=info):
                self._forget(message.request_id, opened)
                opened.end(to_error(info))
            case RequestFailed(error=info):
                self._fail(message.request_id, opened, to_error(info))
            case RequestReleased():
                self._released(message.request_id, opened)
            case _:
                assert_never(message)

    def _accepted(self, message: RequestAccepted, opened: OpenRequest) -> None:
        opened.stream.accept(message.finals)
        opened.begun_s = time.monotonic()
        opened.accepted_s = opened.accepted_s or opened.begun_s
        self.admission.settled(message.request_id)
        try:
            self._sender.send(message, opened.payload)
        except StageError as error:
            self._abort(message.request_id, "its input does not fit")
            opened.stream.fail(error)
        opened.settle()

    def _fail(self, request_id: str, opened: OpenRequest, error: AntiphonError) -> None:
        """End the stream, or start the request again if a replica died before the consumer has seen anything."""
        if opened.is_restarting:  # the same failure on the other lane, or what follows from it
            return
        if opened.may_start_again_after(error):
            log.warning("req=%s is started again: %s", request_id, error.message)
            self._num_restarted += 1
            opened.start_again(next(self._epochs))
        else:
            opened.stream.fail(error)

    def _released(self, request_id: str, opened: OpenRequest) -> None:
        self._sender.forget(request_id)
        if opened.release():
            return self._tell(opened.submission(self.name))
        self._forget_if_over(request_id, opened)
        if not opened.stream.ended:  # its last words are on the other lane
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._end_without_last_words, request_id, opened)

    def _end_without_last_words(self, request_id: str, opened: OpenRequest) -> None:
        """All replicas have let go of a request, and its end has not come: it is lost with the process that said it."""
        if not opened.stream.ended:
            lost = f"{request_id}: its end was lost with the replica that said it; try again"
            opened.stream.fail(ReplicaDiedError(lost))
            self._forget_if_over(request_id, opened)

    def _remind(self) -> None:
        """Every release_s: have the orchestrator stop what has ended here and has not been released for that long."""
        self._timers["remind"] = asyncio.get_running_loop().call_later(self._release_s, self._remind)
        now_s = time.monotonic()
        for request_id, opened in self._open.items():
            if opened.is_overdue(now_s, self._release_s):
                self._tell(AbortRequest(request_id, "it has ended and was not released in time"))

    def _report(self) -> None:
        """Every second: tell the orchestrator, and through it the other api-servers, what is counted here."""
        self._timers["report"] = asyncio.get_running_loop().call_later(STATS_INTERVAL_S, self._report)
        self._read_client_lane()  # see FrameInlet.fileno; the control lane is read as often by itself
        self._sender.receive()
        for part in parts_of(self.name, tuple(self._own_counters())):
            self._tell(part)
        self._lane_meter.close_window()

    def _forget_if_over(self, request_id: str, opened: OpenRequest) -> None:
        if opened.is_over:
            self._forget(request_id, opened)

    def _forget(self, request_id: str, opened: OpenRequest) -> None:
        self.admission.settled(request_id)
        if opened.time_limit is not None:
            opened.time_limit.cancel()
        if self._open.pop(request_id, None) is not None:
            now_s = time.monotonic()
            self.trace.add(request_id, "request", opened.submitted_s, now_s)
            self.trace.add(request_id, "admission", opened.submitted_s, opened.accepted_s or now_s)

    def _read_client_lane(self) -> None:
        while frames := self._client_lane.receive():
            self._lane_meter.read(frames, time.monotonic())
            for frame in frames:
                stage = stage_of(frame.replica)
                for addressed in frame.addressed:
                    opened = self._open.get(addressed.request_id)
                    if opened is not None and addressed.epoch == opened.epoch:
                        self._take(stage, addressed, opened)

    def _take(self, stage: str, addressed: Addressed, opened: OpenRequest) -> None:
        outputs, last = addressed.outputs, addressed.outputs[-1]
        data = [each for each in outputs if type(each) is not RawRows and type(each) is not OutputError]
        if len(data) < len(outputs):
            self._raw_rows_bytes += sum([len(each.data) for each in outputs if type(each) is RawRows])
        if data:
            opened.stream.push(stage, *data)
        if type(last) is OutputError:
            self._fail(addressed.request_id, opened, to_error(last.error))
        self._forget_if_over(addressed.request_id, opened)

    def _give_up(self, request_id: str, reason: str) -> None:
        """Abort a request whose stream nobody has been given: it is over as soon as the orchestrator says so."""
        opened = self._open.get(request_id)
        if opened is not None:
            self._abort(request_id, reason)
            opened.stream.fail(RequestAbortedError(f"{request_id} was aborted: {reason}"))

    def _abort(self, request_id: str, reason: str) -> None:
        self._sender.forget(request_id)
        opened = self._open.get(request_id)
        if opened is not None and opened.is_released:
            self._forget(request_id, opened)
        elif opened is not None:
            self._tell(AbortRequest(request_id, reason))

    def _tell(self, message: Ready | SubmitRequest | AbortRequest | StatsReport | Leaving) -> None:
        bootstrap = self._bootstrap
        has_hurry = not isinstance(message, StatsReport)
        try:
            self._outlet.send(bootstrap.orchestrator_address if has_hurry else bootstrap.unhurried_address, message)
        except ChannelFullError as error:
            log.error("the orchestrator does not read: %s", error.message)
        if self._flush_handle is None:
            self._flush_handle = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """What this turn of the event loop has had for the orchestrator leaves together."""
        self._flush_handle = None
        self._outlet.flush()
