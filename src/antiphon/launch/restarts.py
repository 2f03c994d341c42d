"""When a process that died is started again, and when the launcher gives up.

In: deaths and starts, with the time. Out: who is due, or why to give up. Does not know: processes.
"""

from collections import Counter
from dataclasses import dataclass, field

from antiphon.config.deploy import RestartsDeploy

_MAX_DOUBLINGS = 6


@dataclass
class _Record:
    """deaths: how it died since it last lived for healthy_s. due_s: when its restart is due; None = none is."""

    started_s: float = 0.0
    deaths: list[str] = field(default_factory=list)
    due_s: float | None = None


class Restarts:
    """Owns the record of every process's deaths. Times are in seconds of one monotonic clock."""

    def __init__(self, config: RestartsDeploy) -> None:
        self._config = config
        self._records: dict[str, _Record] = {}

    def started(self, name: str, now_s: float) -> None:
        """A process was started, for the first time or again."""
        record = self._records.setdefault(name, _Record())
        record.started_s, record.due_s = now_s, None

    def died(self, name: str, reason: str, now_s: float) -> str:
        """Plan the restart of a process that died of `reason`; gives why not, if it has died too often, else ""."""
        record = self._records[name]
        if now_s - record.started_s > self._config.healthy_s:
            record.deaths.clear()
        record.deaths.append(reason)
        num_restarts = len(record.deaths) - 1
        if num_restarts >= self._config.max_restarts:
            return f"{name} died {_times(record.deaths)}; giving up, see its log above (restarts.max_restarts)"
        record.due_s = now_s + self._config.backoff_s * 2 ** min(num_restarts, _MAX_DOUBLINGS)
        return ""

    def is_waiting(self, name: str) -> bool:
        """True from a death to the restart."""
        return self._records[name].due_s is not None

    def is_due(self, name: str, now_s: float) -> bool:
        """True if `name` is to be started again now."""
        due_s = self._records[name].due_s
        return due_s is not None and now_s >= due_s

    def describe(self, name: str, now_s: float) -> str:
        """`restart 1 of 5 in 0.5 s`."""
        record = self._records[name]
        due_s = record.due_s if record.due_s is not None else now_s
        return f"restart {len(record.deaths)} of {self._config.max_restarts} in {max(0.0, due_s - now_s):g} s"


def _times(deaths: list[str]) -> str:
    """`3 times (SIGKILL 2 times, exit code 1 once)`."""
    by_reason = ", ".join(f"{reason} {_count(number)}" for reason, number in Counter(deaths).items())
    return f"{_count(len(deaths))} ({by_reason})"


def _count(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
