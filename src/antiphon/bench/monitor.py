"""What the orchestrator's monitor costs: the orchestrator's process under control traffic, with and without it.

In: requests per second, rounds. Out: CPU seconds of the loop, and the monitor's share. Does not know: stages, models.
"""

import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from antiphon.config.deploy import DeployConfig, MonitorDeploy
from antiphon.config.pipeline import Modality
from antiphon.ids import ORCHESTRATOR, replica_id
from antiphon.messages.bootstrap import Bootstrap
from antiphon.messages.control import Counter, Ready, StageEvent, StageEventKind, StatsReport, SubmitRequest
from antiphon.messages.params import RequestParams
from antiphon.models.registry import load_pipeline
from antiphon.monitor.factory import make_monitor
from antiphon.orchestrator.admission import Admission
from antiphon.orchestrator.orchestrator import Orchestrator
from antiphon.orchestrator.process import OrchestratorProcess
from antiphon.orchestrator.process_watch import ProcessWatch
from antiphon.transport.channel import FrameInlet, GatheringOutlet, Outlet

STAGES = ("thinker", "talker", "code2wav")
_TICK_S = 0.001
_NUM_COUNTERS = 40
_NUM_TURNS = 200_000
_REPORTED = ("steps_total", "step_seconds_total", "requests_running", "requests_waiting", "arena_used_bytes")


@dataclass(frozen=True)
class MonitorCost:
    """CPU seconds per second of traffic; turn_s, window_s: what one turn and one window cost the loop's thread.

    measured_share: with over without, minus 1, the median of all rounds. It is the difference of two large figures, so
    on a machine with other work it says little.
    """

    loop_off_s: float
    loop_on_s: float
    writer_s: float
    turns_per_s: float
    turn_s: float
    window_s: float
    measured_share: float

    @property
    def counted_share(self) -> float:
        """The monitor's own work, counted piece by piece, of the loop's CPU time without it."""
        return (self.turns_per_s * self.turn_s + self.window_s + self.writer_s) / self.loop_off_s


class MonitorBench:
    """Owns a folder with sockets; every round is one second of traffic through one of two orchestrators."""

    def __init__(self, *, requests_per_s: int, rounds: int, say: Callable[[str], None]) -> None:
        self._requests_per_s = requests_per_s
        self._rounds = rounds
        self._say = say

    def run(self) -> MonitorCost:
        """Measure both, taking turns."""
        handler = signal.getsignal(signal.SIGTERM)
        with tempfile.TemporaryDirectory(prefix="ap-") as folder:
            os.environ["ANTIPHON_ORCH_MONITOR_PATH"] = str(Path(folder) / "monitor.json")
            off = _Side(Path(folder) / "off", enabled=False, requests_per_s=self._requests_per_s)
            on = _Side(Path(folder) / "on", enabled=True, requests_per_s=self._requests_per_s)
            for side in (off, on):
                side.second()  # caches are warm after it
            for number in range(self._rounds):
                self._say(f"round {number + 1} of {self._rounds}")
                for side in (off, on) if number % 2 else (on, off):
                    side.measure()
            turn_s, window_s = _own_cost(Path(folder) / "own.json")
            cost = MonitorCost(
                loop_off_s=statistics.median(off.loop_s),
                loop_on_s=statistics.median(on.loop_s),
                writer_s=statistics.median(on.writer_s),
                turns_per_s=statistics.median(on.turns),
                turn_s=turn_s,
                window_s=window_s,
                measured_share=statistics.median(
                    (with_it + writer) / without - 1.0
                    for with_it, writer, without in zip(on.loop_s, on.writer_s, off.loop_s, strict=True)
                ),
            )
            for side in (off, on):
                side.close()
        signal.signal(signal.SIGTERM, handler)
        return cost


class _Side:
    """Owns one orchestrator, in this thread, and the other ends of its lanes."""

    def __init__(self, folder: Path, *, enabled: bool, requests_per_s: int) -> None:
        folder.mkdir()
        self._requests_per_s = requests_per_s
        self._address = f"ipc://{folder}/orchestrator"
        config = DeployConfig("sim-voice", monitor=MonitorDeploy(enabled=enabled))
        self.process = OrchestratorProcess(
            Bootstrap(ORCHESTRATOR, "sim-voice", config, str(folder), self._address, f"{self._address}.unhurried", "")
        )
        self.process.startup()
        self._outlet = Outlet()
        names = ("api-server/0", *(replica_id(stage, 0) for stage in STAGES))
        self._inlets = [FrameInlet(f"ipc://{folder}/{name.replace('/', '.')}") for name in names]
        for name, inlet in zip(names, self._inlets, strict=True):
            inlet.startup()
            self._outlet.send(self._address, Ready(name, inlet.address, inlet.address, inlet.address))
        self._num_requests = 0
        self.loop_s: list[float] = []
        self.writer_s: list[float] = []
        self.turns: list[float] = []

    def measure(self) -> None:
        """One second of traffic, measured."""
        writer_s, loop_s = _writer_cpu_s(), time.thread_time()
        self.turns.append(float(self.second()))
        self.loop_s.append(time.thread_time() - loop_s)
        self.writer_s.append(_writer_cpu_s() - writer_s)

    def second(self) -> int:
        """One second of traffic; gives how many turns the loop made."""
        feeder = threading.Thread(target=self._feed)
        feeder.start()
        num_turns = 0
        while feeder.is_alive():
            self.process.turn()
            num_turns += 1
        feeder.join()
        return num_turns

    def close(self) -> None:
        """Close every socket."""
        self.process.close()
        self._outlet.close()
        for inlet in self._inlets:
            inlet.close()

    def _feed(self) -> None:
        """Each request's messages are spread over the milliseconds after its submission, as stages would say them."""
        for replica in (replica_id(stage, 0) for stage in STAGES):
            self._outlet.send(self._address, _report(replica, self._num_requests))
        began_s = time.monotonic()
        script: list[list[StageEvent]] = []
        sent = 0
        while (elapsed_s := time.monotonic() - began_s) < 1.0 or script:
            wanted = min(self._requests_per_s, int(elapsed_s * self._requests_per_s))
            events = script.pop(0) if script else []
            for event in events:
                self._outlet.send(self._address, event)
            for _ in range(wanted - sent):
                self._submit(script)
            sent = max(sent, wanted)
            for inlet in self._inlets:
                inlet.receive()
            time.sleep(_TICK_S)

    def _submit(self, script: list[list[StageEvent]]) -> None:
        request_id = f"req-{self._num_requests}"
        self._num_requests += 1
        outputs = frozenset({Modality.TEXT, Modality.AUDIO})
        submit = SubmitRequest(request_id, "api-server/0", "chat", frozenset({Modality.TEXT}), outputs, RequestParams())
        self._outlet.send(self._address, submit)
        for tick, stage in enumerate(STAGES):
            if tick == len(script):
                script.append([])
            script[tick].append(StageEvent(request_id, 0, replica_id(stage, 0), StageEventKind.RELEASED))


def _orchestrator() -> Orchestrator:
    """With the replicas and their reports, and without sockets that anybody reads."""
    pipeline, outlet = load_pipeline("sim-voice"), GatheringOutlet()
    admission = Admission(max_inflight=256, max_queue=1024)
    orchestrator = Orchestrator(pipeline, admission, outlet, ProcessWatch(), release_deadline_s=60.0)
    for stage in STAGES:
        replica = replica_id(stage, 0)
        orchestrator.handle(Ready(replica, f"ipc:///nowhere/{replica}"))
        orchestrator.handle(_report(replica, 0))
    return orchestrator


def _report(replica: str, count: int) -> StatsReport:
    """As large as a replica's."""
    label = (("replica", replica),)
    counters = [Counter(name, label, float(count)) for name in _REPORTED]
    counters += [Counter(f"other_{index}_total", label, float(count)) for index in range(_NUM_COUNTERS)]
    return StatsReport(replica, tuple(counters))


def _writer_cpu_s() -> float:
    """CPU seconds of the monitor's writing thread so far."""
    writers = [thread for thread in threading.enumerate() if thread.name == "monitor" and thread.ident]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) for thread in writers if thread.ident)


def _own_cost(target: Path) -> tuple[float, float]:
    """Seconds that one turn, and that the closing of one window, takes of the loop's thread, in a tight loop."""
    os.environ["ANTIPHON_ORCH_MONITOR_PATH"] = str(target)
    look = _orchestrator().snapshot
    costs = []
    for window_s, num_turns in ((3600.0, _NUM_TURNS), (1e-9, 200)):
        monitor = make_monitor(MonitorDeploy(enabled=True, window_s=window_s), look)
        monitor.startup()
        began_s = time.thread_time()
        for number in range(num_turns):
            monitor.turn_begins()
            monitor.turn_ends(number // 2, 0.0)
        costs.append((time.thread_time() - began_s) / num_turns)
        monitor.close()
    return costs[0], costs[1]
