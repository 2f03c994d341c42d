"""What a monitor's file says in short: sums, averages and maxima per replica, and verdicts since when.

In: Columns, or sums of them. Out: lines of text, Loads of stretches of time, verdicts. Does not know: files, pictures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from antiphon.monitor.columns import Columns
from antiphon.monitor.verdict import Load, ReplicaLoad, Verdict, verdict_of
from antiphon.monitor.windows import parts_of_key

MIN_STRETCH_S = 5.0
MAX_STRETCHES = 60
_IDLE = "there was no request"


class Totals(Protocol):
    """Sums and maxima of columns, as Columns and ColumnSpool have them."""

    @property
    def num_windows(self) -> int:
        """How many windows."""

    def total(self, group: str, key: str, name: str) -> tuple[float, float]:
        """Sum and maximum of one column."""

    def keys(self, group: str) -> list[str]:
        """The keys of "replicas" or "edges"."""


@dataclass(frozen=True)
class Stretch:
    """Windows `first` to before `last` that got the same verdict, and when they began and ended (Unix time)."""

    first: int
    last: int
    began_unix_s: float
    ended_unix_s: float
    verdict: Verdict


def summary_lines(totals: Totals) -> list[str]:
    """The short summary: the loop in one line, then one line per replica."""
    duration_s, longest_s = totals.total("windows", "", "duration_s")
    idle, active = (totals.total("windows", "", name)[0] for name in ("loop_idle", "loop_active"))
    busy_s, late_s = (totals.total("windows", "", name)[0] for name in ("busy_s", "late_s"))
    lines = [
        f"{totals.num_windows} windows, {duration_s:.1f} s (longest window {longest_s:.2f} s), "
        f"loop active in {_percent(active, idle + active)} of its turns, busy {_percent(busy_s, duration_s)} "
        f"and late {_percent(late_s, duration_s)} of the time"
    ]
    for key in sorted(totals.keys("replicas")):
        queue, most_queued = totals.total("replicas", key, "outputs_queue_size")[0], _most(totals, key, "outputs_queue")
        inflight, most_inflight = totals.total("replicas", key, "inflight")[0], _most(totals, key, "inflight")
        windows = max(1, totals.num_windows)
        lines.append(
            f"{'/'.join(parts_of_key(key))}: output queue {queue / windows:.1f} on average, at most {most_queued:.0f}; "
            f"in flight {inflight / windows:.1f} on average, at most {most_inflight:.0f}"
        )
    return lines


def load_of(columns: Columns, rows: Sequence[int]) -> Load:
    """The load over some windows (their numbers), weighted by the windows' durations."""
    durations_s = [columns.windows["duration_s"][row] for row in rows]
    duration_s = sum(durations_s) or 1.0

    def part(group: str, key: str, name: str) -> float:
        column = columns.column(group, key, name)
        return sum(column[row] for row in rows) / duration_s

    def average(group: str, key: str, name: str) -> float:
        column = columns.column(group, key, name)
        return sum(column[row] * seconds for row, seconds in zip(rows, durations_s, strict=True)) / duration_s

    replicas = tuple(
        ReplicaLoad(
            "/".join(parts_of_key(key)),
            step_busy=part("replicas", key, "step_busy_s"),
            credit_wait=part("replicas", key, "credit_wait_s"),
            running=average("replicas", key, "running"),
            waiting=average("replicas", key, "waiting"),
            slots=average("replicas", key, "slots"),
            outputs_queue=average("replicas", key, "outputs_queue_size"),
            oldest_output_s=average("replicas", key, "oldest_output_s"),
        )
        for key in columns.replicas
    )
    lags_s = columns.column("windows", "", "loop_lag_max_s")
    return Load(
        loop_busy=part("windows", "", "busy_s") + part("windows", "", "late_s"),
        loop_lag_s=max((lags_s[row] for row in rows), default=0.0),
        requests_waiting=average("windows", "", "requests_waiting"),
        requests_inflight=average("windows", "", "requests_inflight"),
        replicas=replicas,
        edges=tuple(dict.fromkeys(parts_of_key(key)[0] for key in columns.edges)),
    )


def loaded_rows(columns: Columns) -> list[int]:
    """The windows with requests in them: those that a verdict is about."""
    running = columns.column("windows", "", "requests_inflight")
    waiting = columns.column("windows", "", "requests_waiting")
    messages = columns.column("windows", "", "request_messages")
    return [row for row, figures in enumerate(zip(running, waiting, messages, strict=True)) if any(figures)]


def verdict_on(columns: Columns) -> Verdict:
    """The verdict that holds for the most windows with requests, worded over all windows that it holds for."""
    loaded = set(loaded_rows(columns))
    rows: dict[str, list[int]] = {}
    verdicts: dict[str, Verdict] = {}
    for stretch in stretches_of(columns):
        subject = _subject(stretch.verdict)
        rows.setdefault(subject, []).extend(row for row in range(stretch.first, stretch.last) if row in loaded)
        verdicts[subject] = stretch.verdict
    if not loaded:
        return Verdict("", _IDLE)
    subject = max(rows, key=lambda name: len(rows[name]))
    reworded = verdict_of(load_of(columns, rows[subject]))
    return reworded if _subject(reworded) == subject else verdicts[subject]


def stretches_of(columns: Columns) -> list[Stretch]:
    """The run in pieces of at least 5 s, at most 60 of them; neighbours of the same verdict are one piece."""
    durations_s, ended_s = columns.windows["duration_s"], columns.column("windows", "", "ended_unix_s")
    loaded = set(loaded_rows(columns))
    found: list[Stretch] = []
    for first, last in _pieces(durations_s):
        rows = [row for row in range(first, last) if row in loaded]
        verdict = verdict_of(load_of(columns, rows)) if rows else Verdict("", _IDLE)
        stretch = Stretch(first, last, ended_s[first] - durations_s[first], ended_s[last - 1], verdict)
        found = _joined(columns, found, stretch, loaded)
    return found


def _pieces(durations_s: Sequence[float]) -> list[tuple[int, int]]:
    """First and last (exclusive) window of each piece; a rest that is too short belongs to the last one."""
    piece_s = max(MIN_STRETCH_S, sum(durations_s) / MAX_STRETCHES)
    pieces: list[tuple[int, int]] = []
    first, so_far_s = 0, 0.0
    for row, seconds in enumerate(durations_s):
        so_far_s += seconds
        if so_far_s >= piece_s:
            pieces.append((first, row + 1))
            first, so_far_s = row + 1, 0.0
    if first < len(durations_s):
        first = pieces.pop()[0] if pieces else first
        pieces.append((first, len(durations_s)))
    return pieces


def _joined(columns: Columns, found: list[Stretch], stretch: Stretch, loaded: set[int]) -> list[Stretch]:
    """`found` with one more piece, which is joined to the last one if both name the same part (or both none)."""
    if not found or _subject(found[-1].verdict) != _subject(stretch.verdict):
        return [*found, stretch]
    first = found[-1].first
    rows = [row for row in range(first, stretch.last) if row in loaded]
    reworded = verdict_of(load_of(columns, rows)) if rows else stretch.verdict
    verdict = reworded if _subject(reworded) == _subject(stretch.verdict) else stretch.verdict
    return [*found[:-1], Stretch(first, stretch.last, found[-1].began_unix_s, stretch.ended_unix_s, verdict)]


def _subject(verdict: Verdict) -> str:
    return verdict.bottleneck or verdict.reason.partition(";")[0]


def _most(totals: Totals, key: str, name: str) -> float:
    size = "outputs_queue_size" if name == "outputs_queue" else name
    return max(totals.total("replicas", key, field)[1] for field in (size, f"{name}_max"))


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "0 %"
