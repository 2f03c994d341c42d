"""One window of the orchestrator's monitor: what the loop, each replica and each edge did in about a second.

In: figures. Out: one line of the JSON-lines file per window; a field that is 0 is not written.
Does not know: where figures come from, columns, files.
"""

from dataclasses import dataclass, field

import msgspec

from antiphon.messages.control import Counter, StatsReport


class LoopWindow(msgspec.Struct, frozen=True, omit_defaults=True):
    """The orchestrator's loop in one window, and the requests it holds. See docs/monitoring.md for every field."""

    ended_unix_s: float = 0.0
    duration_s: float = 0.0
    loop_idle: int = 0
    loop_active: int = 0
    busy_s: float = 0.0
    late_s: float = 0.0
    longest_iteration_s: float = 0.0
    loop_lag_p50_s: float = 0.0
    loop_lag_max_s: float = 0.0
    request_messages: int = 0
    requests_waiting: int = 0
    requests_waiting_max: int = 0
    requests_inflight: int = 0
    num_monitor_faults: int = 0


class ReplicaWindow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One stage replica in one window."""

    outputs_queue_size: int = 0
    outputs_queue_max: int = 0
    oldest_output_s: float = 0.0
    inflight: int = 0
    inflight_max: int = 0
    running: int = 0
    waiting: int = 0
    slots: int = 0
    steps: float = 0.0
    step_busy_s: float = 0.0
    credit_wait_s: float = 0.0


class EdgeWindow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One edge of one producing replica in one window."""

    chunks: float = 0.0
    bytes: int = 0
    arena_fill: float = 0.0
    arena_fill_max: float = 0.0
    oldest_unreleased_s: float = 0.0


class Window(msgspec.Struct, frozen=True):
    """One line of the JSON-lines file. Keys: `stage=talker,replica=1`; `edge=talker->code2wav,replica=talker/1`."""

    window: LoopWindow
    replicas: dict[str, ReplicaWindow]
    edges: dict[str, EdgeWindow]


class Header(msgspec.Struct, frozen=True):
    """The first line of the JSON-lines file."""

    configured_window_s: float


@dataclass(frozen=True)
class ReceivedReport:
    """The last report of a process, and when it was taken in (monotonic)."""

    received_s: float
    report: StatsReport


@dataclass(frozen=True)
class HostSnapshot:
    """What the orchestrator holds as a window closes. max_*: the most since the window before closed."""

    reports: tuple[ReceivedReport, ...] = ()
    pools: tuple[Counter, ...] = ()
    max_waiting: int = 0
    max_inflight: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ClosedWindow:
    """What the loop hands over as a window closes, at `closed_s` (monotonic)."""

    closed_s: float
    loop: LoopWindow
    host: HostSnapshot


def replica_key(stage: str, index: str) -> str:
    """`replica_key("talker", "1") == "stage=talker,replica=1"`."""
    return f"stage={stage},replica={index}"


def edge_key(edge: str, replica: str) -> str:
    """`edge_key("talker->code2wav", "talker/1") == "edge=talker->code2wav,replica=talker/1"`."""
    return f"edge={edge},replica={replica}"


def parts_of_key(key: str) -> tuple[str, str]:
    """The two values of a replica's or an edge's key: ("talker", "1") or ("talker->code2wav", "talker/1")."""
    first, _, second = key.partition(",replica=")
    return first.partition("=")[2], second
