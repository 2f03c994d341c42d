"""An engine client of the voice pipeline, with the test in the roles of the orchestrator and of every replica."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

import msgspec
import pytest

from antiphon.client.engine_client import EngineClient
from antiphon.client.factory import make_engine_client
from antiphon.config.deploy import ConnectorDeploy, DeployConfig, ServerDeploy, TimeoutsDeploy
from antiphon.connector.base import Chunk
from antiphon.connector.shm import ShmConnector
from antiphon.messages import codec
from antiphon.messages.bootstrap import Bootstrap
from antiphon.messages.client import Addressed, ClientFrame, ClientOutput
from antiphon.messages.control import (
    MAX_MESSAGE_BYTES,
    Ready,
    RequestAccepted,
    StatsReport,
    SubmitRequest,
    ToOrchestrator,
)
from antiphon.transport.address import RunDirectory
from antiphon.transport.channel import Inlet, Outlet

T = TypeVar("T")
_POLL_S = 0.002
_PATIENCE_S = 20.0


class Stage:
    """The other side of all three lanes."""

    def __init__(self, directory: RunDirectory, *, release_s: float = 60.0, **server: float) -> None:
        self.address = directory.address
        self._inlet = Inlet(
            directory.address("orchestrator.control"), codec.TO_ORCHESTRATOR, max_message_bytes=MAX_MESSAGE_BYTES
        )
        self.outlet = Outlet()
        self.entry = ShmConnector(directory.address("talker/0.chunks"), arena_bytes=1 << 20)
        self._heard: list[ToOrchestrator] = []
        self._epochs: dict[str, int] = {}
        self.reports: list[StatsReport] = []
        """Once a second, between all that a test waits for."""
        self._is_client_closed = False
        self.client = make_engine_client(
            Bootstrap(
                name="api-server/0",
                pipeline="voice",
                config=DeployConfig(
                    server=msgspec.convert(server, ServerDeploy),
                    connector=ConnectorDeploy(arena_mib=1),
                    timeouts=TimeoutsDeploy(release_s=release_s),
                ),
                run_directory=str(directory.path),
                orchestrator_address=self._inlet.address,
                unhurried_address=self._inlet.address,
                control_address=directory.address("api-server/0.control"),
                connector_address=directory.address("api-server/0.chunks"),
                client_address=directory.address("api-server/0.client"),
            )
        )

    async def startup(self) -> EngineClient:
        self._inlet.startup()
        self.entry.startup()
        await self.client.startup()
        assert await self.hears(Ready) == Ready(
            "api-server/0",
            self.address("api-server/0.control"),
            self.address("api-server/0.chunks"),
            self.address("api-server/0.client"),
            pid=os.getpid(),
        )
        return self.client

    async def close_client(self) -> None:
        if not self._is_client_closed:
            self._is_client_closed = True
            await self.client.close()

    async def close(self) -> None:
        await self.close_client()
        self._inlet.close()
        self.outlet.close()
        self.entry.close()

    async def hears(self, kind: type[T]) -> T:
        """The next message to the orchestrator, which must be a `kind`."""
        await until(lambda: bool(self._heard) or self._receive())
        message = self._heard.pop(0)
        assert isinstance(message, kind), message
        if isinstance(message, SubmitRequest):
            self._epochs.setdefault(message.request_id, message.epoch)
        return message

    def tells(self, message: msgspec.Struct) -> None:
        """On the control lane."""
        self.outlet.send(self.address("api-server/0.control"), message)

    def accepts(self, request_id: str, *finals: str, epoch: int = -1) -> None:
        """epoch -1, here and below: that of the request's first start."""
        epoch = self._epochs.get(request_id, 0) if epoch < 0 else epoch
        self.tells(RequestAccepted(request_id, epoch, "talker/0", self.entry.address, finals or ("code2wav",)))

    def says(self, request_id: str, *outputs: ClientOutput, stage: str = "code2wav", epoch: int = -1) -> None:
        """On the client lane, in one frame."""
        epoch = self._epochs.get(request_id, 0) if epoch < 0 else epoch
        frame = ClientFrame(f"{stage}/0", [Addressed(request_id, epoch, list(outputs))])
        self.outlet.send(self.address("api-server/0.client"), frame)

    async def chunks(self) -> list[Chunk]:
        """What arrives at the entry replica, up to a terminal chunk; not released yet."""
        arrived: list[Chunk] = []
        while not arrived or not arrived[-1].header.is_terminal:
            await until(lambda: self._take(arrived))
        return arrived

    async def holds_nothing(self) -> None:
        """Wait until the client has no open request; the orchestrator has heard nothing that no test expected."""
        await until(lambda: self.client.num_open == 0)
        self._receive()
        assert self._heard == []

    def _receive(self) -> bool:
        for message in self._inlet.receive():
            (self.reports if isinstance(message, StatsReport) else self._heard).append(message)
        return bool(self._heard)

    async def reported(self, name: str) -> dict[str, float]:
        """Replica -> value of one counter, in the report that the client sends next."""
        self.reports.clear()
        await until(lambda: self._receive() or bool(self.reports))
        return {dict(each.labels)["replica"]: each.value for each in self.reports[-1].counters if each.name == name}

    def _take(self, arrived: list[Chunk]) -> bool:
        chunk = self.entry.get()
        if chunk is not None:
            arrived.append(chunk)
        return chunk is not None


async def until(is_so: Callable[[], bool]) -> None:
    """Let the event loop run until `is_so`."""
    async with asyncio.timeout(_PATIENCE_S):
        while not is_so():
            await asyncio.sleep(_POLL_S)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def directory() -> Iterator[RunDirectory]:
    directory = RunDirectory.create()
    yield directory
    directory.remove()


@pytest.fixture
async def stage(directory: RunDirectory) -> AsyncIterator[Stage]:
    stage = Stage(directory, max_text_chars=1_000_000)
    await stage.startup()
    yield stage
    await stage.close()


@pytest.fixture
async def impatient_stage(directory: RunDirectory) -> AsyncIterator[Stage]:
    """One whose client waits 50 ms for anything."""
    stage = Stage(directory, output_deadline_s=0.05)
    await stage.startup()
    yield stage
    await stage.close()


@pytest.fixture
async def reminding_stage(directory: RunDirectory) -> AsyncIterator[Stage]:
    """One whose client asks after 100 ms for what has not been released."""
    stage = Stage(directory, release_s=0.1)
    await stage.startup()
    yield stage
    await stage.close()
