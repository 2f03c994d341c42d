"""The orchestrator's process: its inlets, its loop, its once-a-second report.

In: control messages. Out: control messages. Does not know: what the orchestrator decides.
"""

import signal
import time

from antiphon.ids import ORCHESTRATOR
from antiphon.messages import codec
from antiphon.messages.bootstrap import Bootstrap
from antiphon.messages.control import MAX_MESSAGE_BYTES, STATS_INTERVAL_S, Counter, StatsReport
from antiphon.models.registry import load_pipeline
from antiphon.monitor.counters import lane_counters
from antiphon.monitor.factory import make_monitor
from antiphon.monitor.loop_meter import LoopMeter
from antiphon.orchestrator.admission import Admission
from antiphon.orchestrator.orchestrator import Orchestrator
from antiphon.orchestrator.process_watch import ProcessWatch
from antiphon.process import ChildProcess
from antiphon.transport.channel import GatheringOutlet, Inlet, Poller


class OrchestratorProcess:
    """Owns the control lane's hub: the inlet that everybody speaks to, one for what has no hurry, and one outlet.

    What has no hurry is read in every turn, at the latest once a second, but wakes nobody: a turn costs far more than
    a message. Only when a request waits for nothing else is it listened to.
    """

    def __init__(self, bootstrap: Bootstrap) -> None:
        self._inlet, self._unhurried = (
            Inlet(address, codec.TO_ORCHESTRATOR, max_message_bytes=MAX_MESSAGE_BYTES)
            for address in (bootstrap.orchestrator_address, bootstrap.unhurried_address)
        )
        self._outlet = GatheringOutlet()
        self._poller = Poller()
        self._is_listening = False
        """To what has no hurry."""
        config = bootstrap.config
        admission = Admission(max_inflight=config.admission.max_inflight, max_queue=config.admission.max_queue)
        self._watch = ProcessWatch()
        self._orchestrator = Orchestrator(
            load_pipeline(bootstrap.pipeline),
            admission,
            self._outlet,
            self._watch,
            release_deadline_s=config.timeouts.release_s,
            apart_s=config.restarts.apart_s,
        )
        self._monitor = make_monitor(config.monitor, self._orchestrator.snapshot)
        self._next_report_s = 0.0
        self._loop_meter = LoopMeter()
        self._stopping = False

    def startup(self) -> None:
        """Bind the inlets."""
        self._inlet.startup()
        self._unhurried.startup()
        self._poller.register(self._inlet)
        self._poller.register(self._watch.fileno())
        self._poller.wake_on_signals()
        self._monitor.startup()
        signal.signal(signal.SIGTERM, lambda *_: self._stop())

    def run(self) -> None:
        """Receive batch -> advance -> perform, until SIGTERM."""
        while not self._stopping:
            self.turn()
        self.close()

    def close(self) -> None:
        """Close every socket and end the monitor."""
        self._inlet.close()
        self._unhurried.close()
        self._outlet.close()
        self._watch.close()
        self._monitor.close()

    def turn(self) -> None:
        """One turn of the loop: all that has arrived, then a wait for more."""
        self._loop_meter.turn_begins()
        self._monitor.turn_begins()
        self._receive()
        for ended in self._watch.ended():
            self._orchestrator.process_ended(ended.name, ended.pid, ended.how)
        if self._orchestrator.due_s <= (now_s := time.monotonic()):
            self._orchestrator.start_again(now_s)
        self._orchestrator.tell_news()
        self._report_if_due()
        self._outlet.flush()
        self._loop_meter.turn_ends()
        next_s = min(self._next_report_s, self._orchestrator.due_s)
        wait_s = min(max(0.0, next_s - time.monotonic()), self._monitor.max_wait_s)
        self._monitor.turn_ends(self._orchestrator.num_request_messages, wait_s)
        self._listen()
        self._poller.wait(wait_s)

    def _receive(self) -> None:
        """What has been said without hurry comes first: it was said earlier, and it frees places."""
        messages = self._inlet.receive()
        self._receive_unhurried()
        for message in messages:
            self._orchestrator.handle(message)

    def _receive_unhurried(self) -> None:
        """Once a second all of it: what an idle orchestrator left lying, of more than one read holds, would pile up."""
        is_all = time.monotonic() >= self._next_report_s
        while messages := self._unhurried.receive():
            for message in messages:
                self._orchestrator.handle(message)
            if not is_all:
                return

    def _listen(self) -> None:
        is_wanted = self._orchestrator.is_owed_releases
        if is_wanted and not self._is_listening:
            self._poller.register(self._unhurried)
        elif self._is_listening and not is_wanted:
            self._poller.unregister(self._unhurried)
        self._is_listening = is_wanted

    def _stop(self) -> None:
        self._stopping = True

    def _report_if_due(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_report_s:
            return
        self._next_report_s = now_s + STATS_INTERVAL_S
        lanes = {
            "control": self._inlet.counters,
            "control_unhurried": self._unhurried.counters,
            "control_out": self._outlet.counters,
        }
        counters = (
            Counter("uptime_s", (("process", ORCHESTRATOR),), self._loop_meter.uptime_s),
            *lane_counters(ORCHESTRATOR, lanes),
            *self._loop_meter.close_window(),
        )
        self._orchestrator.handle(StatsReport(ORCHESTRATOR, counters))
        self._orchestrator.report()
        self._orchestrator.expire(now_s)


def main(bootstrap: Bootstrap, child: ChildProcess) -> None:
    """Run as a child of the launcher."""
    with child.reporting_failure():
        process = OrchestratorProcess(bootstrap)
        process.startup()
    child.ready()
    process.run()
