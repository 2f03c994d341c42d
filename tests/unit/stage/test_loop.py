"""A turn of the stage's loop: how many steps of the engine are in it, by a clock that only steps move."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from antiphon.config.pipeline import EngineKind, StageSpec
from antiphon.connector.inproc import InprocConnector
from antiphon.messages import codec
from antiphon.monitor.trace import NoTrace
from antiphon.stage import loop as module
from antiphon.stage.engine.base import EngineStatistics, StepResult
from antiphon.stage.inbox import Inbox
from antiphon.stage.loop import StageLoop
from antiphon.stage.outputs import OutputRouter
from antiphon.stage.report import StatisticsReporter
from antiphon.stage.spans import StageSpans
from antiphon.transport.channel import GatheringOutlet, Inlet


class TimedEngine:
    """Has `num_left` steps to do, each of which takes `step_s` on a clock of its own."""

    def __init__(self) -> None:
        self.now_s, self.step_s, self.num_left = 0.0, 0.0, 0

    def monotonic(self) -> float:
        return self.now_s

    def startup(self) -> None: ...

    def add(self, request: object) -> None: ...

    def abort(self, request_id: str) -> None: ...

    def has_work(self) -> bool:
        return self.num_left > 0

    def step(self) -> list[StepResult]:
        self.num_left -= 1
        self.now_s += self.step_s
        return []

    def fileno(self) -> None:
        return None

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(0, 0, 0, 0.0, 0)

    def close(self) -> None: ...


class NotedRouter(OutputRouter):
    """Notes in which order things leave."""

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)
        self.left: list[str] = []

    def send(self) -> None:
        self.left.append("to clients")
        super().send()

    def flush(self) -> dict[str, bool]:
        self.left.append("rows")
        return super().flush()


@pytest.fixture
def engine() -> TimedEngine:
    return TimedEngine()


@pytest.fixture
def loop(engine: TimedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StageLoop]:
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=engine.monotonic))
    spec = StageSpec("thinker", EngineKind.GENERATION, "no.model:Model")
    connector = InprocConnector("loop", arena_bytes=1024)
    control, outlet = Inlet(f"ipc://{tmp_path}/control", codec.TO_REPLICA), GatheringOutlet()
    control.startup()
    connector.startup()
    router = NotedRouter("thinker/0", spec, (), {}, connector, outlet, deadlines_s={})
    nobody = f"ipc://{tmp_path}/nobody"
    yield StageLoop(
        "thinker/0",
        spec,
        {},
        engine=engine,
        connector=connector,
        inbox=Inbox(connector, early_deadline_s=1.0),
        router=router,
        control=control,
        events=outlet,
        orchestrator_address=nobody,
        unhurried_address=nobody,
        reporter=StatisticsReporter("thinker/0", engine, connector, router.counters, {}, outlet, nobody),
        spans=StageSpans(NoTrace(), spec.engine),
        on_joined=lambda: None,
        drain_s=1.0,
        turn_s=0.0005,
    )
    outlet.close()
    connector.close()
    control.close()


@pytest.mark.parametrize(("step_s", "num_steps"), [(0.02, 1), (0.0006, 1), (0.0002, 3), (0.00011, 5)])
def test_a_turn_has_one_step_or_as_many_short_ones_as_begin_in_half_a_millisecond(
    loop: StageLoop, engine: TimedEngine, step_s: float, num_steps: int
) -> None:
    engine.step_s, engine.num_left = step_s, 10
    loop.step()
    assert engine.num_left == 10 - num_steps


def test_a_turn_ends_when_nothing_is_left_to_do(loop: StageLoop, engine: TimedEngine) -> None:
    engine.num_left = 3
    loop.step()
    assert engine.num_left == 0


def test_what_clients_get_leaves_before_rows_are_copied(loop: StageLoop, engine: TimedEngine) -> None:
    engine.num_left = 1
    loop.step()
    assert loop._router.left == ["to clients", "rows"]
