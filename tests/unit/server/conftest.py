"""An engine client that plays a script, and ways to call the app: over httpx, or message by message."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from antiphon.client.admission_view import AdmissionView
from antiphon.client.output_stream import OutputStream, StageMessage
from antiphon.config.deploy import ServerDeploy
from antiphon.config.pipeline import EngineKind, Modality, PipelineSpec, StageSpec, TaskSpec, VoiceSpec
from antiphon.errors import AntiphonError
from antiphon.messages.client import AudioChunk, OutputEnd, TextDelta, Usage
from antiphon.messages.control import Counter
from antiphon.messages.tasks import ChatInput, TaskInput
from antiphon.monitor.trace import NoTrace, Trace
from antiphon.server.app import create_app
from antiphon.server.connection import ConnectionConfig
from antiphon.server.drain import Drain
from antiphon.server.settings import ServerSettings

SAMPLE_RATE = 24_000
KERNEL_BYTES = 4096
"""What the kernel keeps of a connection's bytes on their way out: little, so that a client that does not read shows."""
HEARD = ("en", "de", "yue")
PIPELINE = PipelineSpec(
    name="voice",
    stages=tuple(
        StageSpec(name, EngineKind.GENERATION, "nowhere:Model") for name in ("listener", "thinker", "code2wav")
    ),
    edges=(),
    tasks=(
        TaskSpec("speech", {Modality.TEXT: "code2wav"}, {Modality.AUDIO: "code2wav"}),
        TaskSpec(
            "chat",
            {Modality.TEXT: "thinker", Modality.AUDIO: "listener"},
            {Modality.TEXT: "thinker", Modality.AUDIO: "code2wav"},
        ),
        TaskSpec("transcription", {Modality.AUDIO: "listener"}, {Modality.TEXT: "listener"}, languages=HEARD),
    ),
    frontend="nowhere:Frontend",
    voices=(VoiceSpec("anna", "en", ("alloy",)), VoiceSpec("ben", "de")),
    sample_rate=SAMPLE_RATE,
)


def tone(num_samples: int, start: int = 0) -> bytes:
    """s16le samples that count up, so that any loss or repetition shows."""
    return b"".join(((start + n) % 20_000).to_bytes(2, "little", signed=True) for n in range(num_samples))


def audio(num_samples: int, start: int = 0) -> StageMessage:
    return StageMessage("code2wav", AudioChunk(tone(num_samples, start), SAMPLE_RATE))


def text(words: str) -> StageMessage:
    return StageMessage("thinker", TextDelta(words))


def end(stage: str, *, finish_reason: str = "stop", usage: Usage | None = None) -> StageMessage:
    return StageMessage(stage, OutputEnd(finish_reason, usage or Usage()))


@dataclass
class ScriptedClient:
    """Stands in for the EngineClient: each request gets a real OutputStream that holds `script`, then `failure`.

    `refusal` is for those that come after `num_admitted`. With neither an end in the script nor a failure the stream
    stays open, as that of a busy stage.
    """

    script: list[StageMessage] = field(default_factory=list)
    refusal: AntiphonError | None = None
    num_admitted: int = 0
    admission: AdmissionView = field(default_factory=AdmissionView)
    failure: AntiphonError | None = None
    live: dict[str, int] = field(default_factory=lambda: {"listener": 1, "thinker": 1, "code2wav": 1})
    reported: list[Counter] = field(default_factory=list)
    pipeline: PipelineSpec = PIPELINE
    run_directory: Path = Path("/nowhere")
    name: str = "api-server/0"
    trace: Trace = field(default_factory=NoTrace)
    inputs: list[TaskInput] = field(default_factory=list)
    request_ids: list[str] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    streams: list[OutputStream] = field(default_factory=list)
    submitted: asyncio.Event = field(default_factory=asyncio.Event)

    async def submit(
        self,
        task_input: TaskInput,
        *,
        request_id: str,
        is_whole: bool = False,
        client: str = "",
        began_s: float | None = None,
    ) -> OutputStream:
        self.clients.append(client)
        if self.refusal is not None and len(self.inputs) >= self.num_admitted:
            raise self.refusal
        self.inputs.append(task_input)
        self.request_ids.append(request_id)
        stream = OutputStream(
            request_id, deadline_s=30, max_backlog_bytes=1 << 24, abort=lambda id, reason: self.aborted.append(id)
        )
        self.streams.append(stream)
        spoken = isinstance(task_input, ChatInput) and task_input.audio_out
        ending = {message.stage for message in self.script if isinstance(message.output, OutputEnd)}
        stream.accept(tuple({"thinker", "code2wav"} if spoken else ending or {"code2wav"}))
        for message in self.script:
            stream.push(message.stage, message.output)
        if self.failure is not None:
            stream.fail(self.failure)
        self.submitted.set()
        return stream

    def live_replicas(self) -> dict[str, int]:
        return self.live

    def counters(self) -> Iterable[Counter]:
        return self.reported


@dataclass
class RawExchange:
    """One request driven message by message: what the app has sent so far, and a way to hang up."""

    app: FastAPI
    path: str
    body: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=lambda: [(b"content-type", b"application/json")])
    body_chunks: list[bytes] | None = None
    sent: list[dict] = field(default_factory=list)
    num_received_bytes: int = 0
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    first_body: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": self.headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        waiting = list(self.body_chunks if self.body_chunks is not None else [self.body])

        async def receive() -> dict:
            if waiting:
                chunk = waiting.pop(0)
                self.num_received_bytes += len(chunk)
                return {"type": "http.request", "body": chunk, "more_body": bool(waiting)}
            await self.hung_up.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict) -> None:
            self.sent.append(message)
            if message.get("body"):
                self.first_body.set()

        async with asyncio.timeout(20):
            await self.app(scope, receive, send)

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def body_sent(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def complete(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def client(tmp_path: Path) -> ScriptedClient:
    return ScriptedClient(run_directory=tmp_path)


@pytest.fixture
def drain() -> Drain:
    return Drain()


@pytest.fixture
def app(client: ScriptedClient, drain: Drain) -> FastAPI:
    return create_app(client, ServerSettings(ServerDeploy(max_body_mib=1), heard_languages=HEARD), drain)


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        yield http


def events(body: str) -> list[dict]:
    """The JSON of all `data:` lines but [DONE]."""
    lines = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@asynccontextmanager
async def listening(app: FastAPI, settings: ServerDeploy) -> AsyncIterator[uvicorn.Server]:
    """`app` under uvicorn on a port of its own."""
    config = ConnectionConfig(app, settings)
    config.load()
    server, listener = uvicorn.Server(config), socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)  # of every connection
    listener.setblocking(False)
    serving = asyncio.create_task(server._serve(sockets=[listener]))
    assert await eventually(lambda: server.started)
    try:
        yield server
    finally:
        server.should_exit = server.force_exit = True
        await serving


async def eventually(check: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    for _ in range(int(timeout_s / 0.01)):
        if check():
            return True
        await asyncio.sleep(0.01)
    return False
