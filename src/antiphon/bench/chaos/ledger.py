"""The ledger of a chaos run: every request's end, what may excuse a failure, and what was found at rest and afterwards.

In: asks, outcomes, disturbances, findings. Out: lines, each right or wrong. Does not know: processes, sockets, how
anything was found out.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from antiphon.bench.chaos import answer
from antiphon.bench.chaos.actions import Ask, Door, Form, Manner
from antiphon.bench.chaos.answer import End, Outcome

_RECOVERY_S = 8.0
"""How long after a process has died requests may still end with its error."""
_DRAIN_S = 15.0
"""How long an api-server that drains may refuse new requests."""
_BACKLOG_S = 0.5
"""A connection that came this shortly before its api-server stopped listening may not have been accepted."""
_MAX_GROWTH_BYTES = 8 << 20
_MAX_GROWTH_FILES = 8
_FILES_PER_PROCESS = 4
_LEAST_SHARE_FINISHED = 0.3
_MAX_EXAMPLES = 10


class Disturbed(StrEnum):
    """What a disturbance takes away. DRAINED: one api-server or all, in good order: accepted requests go on."""

    REPLICA = "a replica"
    API_SERVER = "an api-server"
    SERVER = "the server"
    DRAINED = "api-servers, drained"


class Disturbance(msgspec.Struct, frozen=True):
    """From `at_s` on, requests that need what is gone may fail. name: of the process, or its beginning."""

    at_s: float
    what: Disturbed
    name: str = ""


class Growth(msgspec.Struct, frozen=True):
    """How much larger a process was at its last rest than at its first, and how many more processes there were.

    Every process that another speaks with costs it some open files.
    """

    name: str
    private_bytes: int
    num_open_files: int
    num_processes: int

    @property
    def num_files_too_many(self) -> int:
        """Open files beyond those for more processes; up to 0 is fine."""
        return self.num_open_files - _FILES_PER_PROCESS * max(0, self.num_processes) - _MAX_GROWTH_FILES


@dataclass(frozen=True)
class Line:
    """One line of the ledger. ok None: a figure for the reader."""

    name: str
    value: str
    ok: bool | None = None


class Findings(msgspec.Struct):
    """What should not be there, each as one sentence."""

    still_open: list[str] = msgspec.field(default_factory=list)
    processes_missing: list[str] = msgspec.field(default_factory=list)
    files_of_the_gone: list[str] = msgspec.field(default_factory=list)
    processes_left: list[str] = msgspec.field(default_factory=list)
    files_left: list[str] = msgspec.field(default_factory=list)
    wrong_exits: list[str] = msgspec.field(default_factory=list)
    failed_joins_and_drains: list[str] = msgspec.field(default_factory=list)


@dataclass
class Ledger:
    """Owns everything that was counted.

    is_simulated: else stages are networks, whose right answers nobody knows and whose memory grows while they warm up.
    """

    is_simulated: bool = True
    asks: dict[int, Ask] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    disturbances: list[Disturbance] = field(default_factory=list)
    growths: list[Growth] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    num_rests: int = 0
    num_started_again: int = 0

    def submit(self, ask: Ask) -> None:
        """A request is on its way."""
        self.asks[ask.number] = ask

    def lines(self) -> list[Line]:
        """The whole ledger."""
        ends = Counter(outcome.end for outcome in self.outcomes)
        num_submitted, num_finished = len(self.asks), ends[End.FINISHED]
        counted = " + ".join(f"{end} {ends[end]}" for end in (End.FINISHED, End.FAILED, End.ABORTED))
        reasons = Counter(outcome.reason for outcome in self.outcomes if outcome.end is End.FAILED)
        balanced = num_submitted == ends[End.FINISHED] + ends[End.FAILED] + ends[End.ABORTED]
        return [
            Line("requests", f"submitted {num_submitted} = {counted}", balanced),
            Line(
                "failed, by reason", ", ".join(f"{name} {count}" for name, count in sorted(reasons.items())) or "none"
            ),
            Line("started again elsewhere, unnoticed", str(self.num_started_again)),
            Line("from a replica's death to its requests' errors", self._slowest_error()),
            Line("share that finished", f"{num_finished / max(1, num_submitted):.0%}", self._is_worth(num_finished)),
            _count("lost: no end in time", [_told(o) for o in self.outcomes if o.end is End.LOST]),
            self._wrong_answers(),
            _count("failures that nothing excuses", [_told(outcome) for outcome in self.unexcused()]),
            Line("rests at which everything was counted", str(self.num_rests), self.num_rests > 0),
            _count("still open at rest", self.findings.still_open),
            _count("processes missing at rest", self.findings.processes_missing),
            _count("socket files of processes that are gone", self.findings.files_of_the_gone),
            self._growth_line(),
            _count("processes left", self.findings.processes_left),
            _count("files left", self.findings.files_left),
            _count("wrong exit codes", self.findings.wrong_exits),
            _count("joins and drains that failed", self.findings.failed_joins_and_drains),
        ]

    @property
    def is_clean(self) -> bool:
        """True if no line is wrong."""
        return not any(line.ok is False for line in self.lines())

    def was_killed_since(self, name: str, since_s: float) -> bool:
        """True if the replica, or some replica of the stage called `name`, was killed then or later."""
        killed = (d for d in self.disturbances if d.what is Disturbed.REPLICA and d.at_s >= since_s)
        return any(name.startswith(d.name) or d.name.startswith(name) for d in killed)

    def unexcused(self) -> list[Outcome]:
        """Failures with another reason than what was done to the server or asked for by the request."""
        return [o for o in self.outcomes if o.end is End.FAILED and not self._is_excused(self.asks[o.number], o)]

    def _is_excused(self, ask: Ask, outcome: Outcome) -> bool:
        has_no_words = ask.form is Form.SPEECH_BYTES  # a file that cannot be finished: the connection is cut
        match outcome.reason:
            case "overloaded":
                return True
            case "stage_error":
                return ask.fault.startswith("raise") and "told to raise" in outcome.message
            case "replica_died" | "deadly_request":
                return self._was_hit(outcome) or self._was_disturbed(ask, outcome, {Disturbed.SERVER})
            case answer.CONNECTION_LOST if has_no_words and (ask.fault or self._was_hit(outcome, by_name=False)):
                return True
            case answer.CONNECTION_LOST | "shutting_down":
                return self._was_disturbed(ask, outcome, {Disturbed.API_SERVER, Disturbed.SERVER, Disturbed.DRAINED})
            case _:
                return self._was_disturbed(ask, outcome, {Disturbed.SERVER})

    def _was_hit(self, outcome: Outcome, *, by_name: bool = True) -> bool:
        """True if a replica was killed shortly before the request or during it; by_name: the one that it names."""
        for disturbance in self.disturbances:
            names = (disturbance.name, disturbance.name.replace("/", "."))  # an error may know but its address
            is_named = not by_name or any(name in outcome.message for name in names)
            if disturbance.what is Disturbed.REPLICA and is_named and _overlaps(disturbance, outcome):
                return True
        return False

    def _was_disturbed(self, ask: Ask, outcome: Outcome, kinds: set[Disturbed]) -> bool:
        for disturbance in self.disturbances:
            is_near = _overlaps(disturbance, outcome)
            if disturbance.what is Disturbed.DRAINED and ask.door is Door.HTTP:
                after_s = outcome.began_s - disturbance.at_s
                is_near = -_BACKLOG_S < after_s <= _DRAIN_S and disturbance.at_s <= outcome.ended_s
            if disturbance.what in kinds and is_near:
                return True
        return False

    def _wrong_answers(self) -> Line:
        if not self.is_simulated:
            return Line("wrong answers", "not looked for: nobody knows the right ones of this pipeline")
        return _count("wrong answers", [_told(outcome) for outcome in self.outcomes if outcome.is_wrong])

    def _slowest_error(self) -> str:
        """Over the kills by signal, whose time is known (a request that ends a process names a stage only).

        Clients that were not reading are left out.
        """
        deaths = [d for d in self.disturbances if d.what in (Disturbed.REPLICA, Disturbed.SERVER)]
        times_s = []
        for outcome in self.outcomes:
            if (
                outcome.reason in ("replica_died", "deadly_request")
                and self.asks[outcome.number].manner is not Manner.PAUSE
            ):
                before = [d for d in deaths if d.name in outcome.message and d.at_s <= outcome.ended_s]
                last = max(before, key=lambda death: death.at_s, default=None)
                if last is not None and last.name and not last.name.endswith("/"):
                    times_s.append(outcome.ended_s - last.at_s)
        return f"at most {max(times_s):.2f} s, of {len(times_s)} requests" if times_s else "no request was hit"

    def _is_worth(self, num_finished: int) -> bool:
        """A run in which hardly anything finishes proves nothing."""
        return num_finished >= _LEAST_SHARE_FINISHED * len(self.asks)

    def _growth_line(self) -> Line:
        if not self.growths:
            return Line("growth", "no process lived through two rests", False)
        memory = max(self.growths, key=lambda growth: growth.private_bytes)
        files = max(self.growths, key=lambda growth: growth.num_files_too_many)
        value = f"at most {memory.private_bytes / 2**20:+.1f} MiB ({memory.name}), {files.num_open_files:+d} open files"
        is_large = self.is_simulated and memory.private_bytes > _MAX_GROWTH_BYTES
        ok = not is_large and files.num_files_too_many <= 0
        return Line(f"growth of {len(self.growths)} processes", f"{value} ({files.name})", ok)


def _overlaps(disturbance: Disturbance, outcome: Outcome) -> bool:
    return disturbance.at_s <= outcome.ended_s and outcome.began_s - disturbance.at_s <= _RECOVERY_S


def _count(name: str, found: list[str]) -> Line:
    examples = "".join(f"\n    {sentence}" for sentence in found[:_MAX_EXAMPLES])
    return Line(name, f"{len(found)}{examples}", not found)


def _told(outcome: Outcome) -> str:
    lasted_s = outcome.ended_s - outcome.began_s
    what = f"{outcome.end} after {lasted_s:.2f} s: {outcome.reason} {outcome.message}"
    return f"request {outcome.number} at {outcome.began_s:.2f} s: {what}"
