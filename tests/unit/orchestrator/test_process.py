"""The orchestrator's loop over real sockets: what wakes it, and what it only reads when it is awake."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from antiphon.config.deploy import DeployConfig
from antiphon.config.pipeline import Modality
from antiphon.ids import ORCHESTRATOR
from antiphon.messages import codec
from antiphon.messages.bootstrap import Bootstrap
from antiphon.messages.control import (
    MAX_MESSAGE_BYTES,
    AbortRequest,
    Counter,
    Ready,
    RequestReleased,
    StageEvent,
    StageEventKind,
    StatsReport,
    SubmitRequest,
    ToApiServer,
)
from antiphon.messages.params import RequestParams
from antiphon.orchestrator import process as module
from antiphon.orchestrator.process import OrchestratorProcess
from antiphon.transport.channel import Inlet, Outlet

NEVER_S = 3600.0
PATIENCE_S = 10.0
PAUSE_S = 0.05
MODALITIES = frozenset({Modality.TEXT})


class Members:
    """Owns an orchestrator of sim-relay that nothing wakes by itself, and speaks for everybody else."""

    def __init__(self, directory: Path) -> None:
        self.hurried, self.unhurried = f"ipc://{directory}/hurried", f"ipc://{directory}/unhurried"
        bootstrap = Bootstrap(
            ORCHESTRATOR, "sim-relay", DeployConfig(), str(directory), self.hurried, self.unhurried, ""
        )
        self.process = OrchestratorProcess(bootstrap)
        self.process.startup()
        self.api_server: Inlet[ToApiServer] = Inlet(f"ipc://{directory}/api-server", codec.TO_API_SERVER)
        self.replicas = Inlet(f"ipc://{directory}/replicas", codec.TO_REPLICA)
        self.outlet = Outlet()
        for inlet in (self.api_server, self.replicas):
            inlet.startup()
        self.outlet.send(self.hurried, Ready("api-server/0", self.api_server.address))
        for name in ("encoder/0", "decoder/0"):
            self.outlet.send(self.hurried, Ready(name, self.replicas.address))
        self.outlet.send(
            self.hurried, SubmitRequest("req-1", "api-server/0", "chat", MODALITIES, MODALITIES, RequestParams())
        )

    def turn(self, meanwhile: Callable[[], None]) -> bool:
        """One turn; in its wait, another thread does `meanwhile`. False if only the test's patience ended the wait."""
        has_turned = threading.Event()
        patience: list[bool] = []

        def run() -> None:
            time.sleep(PAUSE_S)
            meanwhile()
            if not has_turned.wait(PATIENCE_S):
                patience.append(False)
                self.wake()

        thread = threading.Thread(target=run)
        thread.start()
        self.process.turn()
        has_turned.set()
        thread.join()
        return not patience

    def wake(self) -> None:
        """Say something that changes nothing."""
        self.outlet.send(self.hurried, AbortRequest("req-nobody", "to wake"))

    def release(self, replica: str, address: str) -> None:
        self.outlet.send(address, StageEvent("req-1", 0, replica, StageEventKind.RELEASED))

    def is_released(self) -> bool:
        return any(isinstance(message, RequestReleased) for message in self.api_server.receive())

    def close(self) -> None:
        for owner in (self.process, self.outlet, self.api_server, self.replicas):
            owner.close()


@pytest.fixture
def members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Members]:
    monkeypatch.setattr(module, "STATS_INTERVAL_S", NEVER_S)
    handler, wakeup_fd = signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)
    members = Members(tmp_path)
    yield members
    members.close()
    signal.signal(signal.SIGTERM, handler)
    signal.set_wakeup_fd(wakeup_fd)


def test_what_has_no_hurry_wakes_nobody_and_is_read_with_what_does(members: Members) -> None:
    order = []

    def release() -> None:
        members.release("encoder/0", members.unhurried)
        time.sleep(PAUSE_S)
        order.append("decoder/0")
        members.release("decoder/0", members.hurried)

    assert members.turn(release)
    assert order == ["decoder/0"], "the release of encoder/0 has ended the wait"
    assert members.turn(members.wake)
    assert members.is_released()


def test_when_nothing_else_is_missing_what_has_no_hurry_wakes_too(members: Members) -> None:
    assert members.turn(lambda: members.release("decoder/0", members.hurried))
    assert members.turn(lambda: members.release("encoder/0", members.unhurried))
    assert members.turn(members.wake)
    assert members.is_released()


def test_reports_of_any_size_leave_nothing_lying_once_a_second(members: Members) -> None:
    large = Counter("x" * (MAX_MESSAGE_BYTES // 2), (), 0.0)
    for number in range(5):
        members.outlet.send(members.unhurried, StatsReport("encoder/0", (large,), number, 5))
    assert members.turn(members.wake)
    assert members.process._unhurried.receive() == []
