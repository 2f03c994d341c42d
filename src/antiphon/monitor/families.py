"""Every metric family: its name, kind, unit, labels and meaning. `/metrics` and docs/metrics.md are made of this table.

In: nothing. Out: FAMILIES, and the tables of docs/metrics.md. Does not know: who counts, who reads.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

PREFIX = "antiphon_"


class Kind(StrEnum):
    """How a family is read: a counter only grows, a gauge is of this moment, a histogram counts by buckets."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Group(StrEnum):
    """The sections of docs/metrics.md and the rows of the dashboard."""

    REQUESTS = "Requests"
    LATENCY = "Latency"
    STAGES = "Stages"
    CLIENT_LANE = "Client lane"
    EDGES = "Edges"
    ORCHESTRATOR = "Orchestrator"
    LANES = "Processes and lanes"


@dataclass(frozen=True)
class Family:
    """One metric family. name: as it travels in a StatsReport; unit "" = a plain number."""

    name: str
    kind: Kind
    group: Group
    unit: str
    labels: tuple[str, ...]
    meaning: str

    @property
    def page_name(self) -> str:
        """The name on the page: with the prefix; `_s` is spelled out, as Prometheus wants it."""
        return PREFIX + (f"{self.name.removesuffix('_s')}_seconds" if self.name.endswith("_s") else self.name)


_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
_PROCESS, _REPLICA = ("process",), ("stage", "replica")
_EDGE = ("edge", *_REPLICA)
_PROCESS_TASK = ("process", "task")

_REQUESTS = (
    (
        _C,
        "http_requests_total",
        "requests",
        ("process", "route", "method", "status"),
        "answered HTTP requests and ended WebSockets (method WEBSOCKET, status 101); status 499: the client left first",
    ),
    (
        _G,
        "http_requests_open",
        "requests",
        _PROCESS,
        "HTTP requests and WebSockets that have begun and are not over, without /health, /ready and /metrics",
    ),
    (_G, "websockets_open", "WebSockets", _PROCESS, "WebSockets that have begun and are not over"),
    (
        _H,
        "http_request_seconds",
        "s",
        ("process", "route"),
        "from an HTTP request's arrival to the last byte of its answer",
    ),
    (
        _C,
        "requests_total",
        "requests",
        ("task", "outcome"),
        "starts of requests that are over. outcome: finished, failed (in a stage), replica_died, aborted (client gone, "
        "deadline, backlog), rejected (no place, no replica). A request that is started again counts once per start",
    ),
    (_G, "requests_inflight", "requests", (), "admitted and not released by every bound replica"),
    (
        _G,
        "requests_queued",
        "requests",
        (),
        "waiting for admission, or to start again after a death: for a replica, or for their turn",
    ),
    (_G, "requests_open", "requests", _PROCESS, "submitted by this process, and not both ended and released"),
    (_C, "requests_restarted_total", "requests", _PROCESS, "started again because a replica died before any output"),
)
_LATENCY = (
    (_H, "ttft_seconds", "s", _PROCESS_TASK, "from a request's arrival to its first text, if the answer is streamed"),
    (_H, "ttfa_seconds", "s", _PROCESS_TASK, "from a request's arrival to its first audio, if the answer is streamed"),
    (
        _H,
        "tpot_seconds",
        "s",
        _PROCESS_TASK,
        "time per output token after the first: from the first to the last text, by the tokens the stage has counted",
    ),
    (
        _H,
        "e2e_seconds",
        "s",
        _PROCESS_TASK,
        "from a request's arrival to the last byte of its answer; only answers that are complete",
    ),
    (
        _H,
        "audio_rtf_ratio",
        "s per s of audio",
        _PROCESS_TASK,
        "real-time factor: time from arrival to the last byte, by the duration of the audio",
    ),
    (
        _H,
        "audio_underrun_seconds",
        "s",
        _PROCESS_TASK,
        "how long a player that starts with the first audio byte would have stood still, in all; streamed answers only",
    ),
)
_STAGES = (
    (_G, "replicas_live", "replicas", ("stage",), "can be bound"),
    (
        _G,
        "replica_inflight",
        "requests",
        _REPLICA,
        "bound to the replica and not released, as the orchestrator sees it",
    ),
    (_G, "requests_bound", "requests", _REPLICA, "bound to the replica and not released, as the replica sees it"),
    (_G, "requests_running", "requests", _REPLICA, "have a place in the engine"),
    (_G, "requests_waiting", "requests", _REPLICA, "wait for a place in the engine"),
    (_G, "requests_max", "requests", _REPLICA, "places of the engine"),
    (_C, "steps_total", "steps", _REPLICA, "steps of the engine; of llama.cpp: collections of what it has made"),
    (
        _C,
        "step_seconds_total",
        "s",
        _REPLICA,
        "time in steps; of llama.cpp: time in which it had a request to work on. 1 s/s: it is never idle",
    ),
    (_H, "step_duration_seconds", "s", _REPLICA, "one step; none of llama.cpp, which steps by itself"),
    (_H, "batch_size", "requests", _REPLICA, "requests in one step; none of llama.cpp"),
    (_H, "queue_seconds", "s", _REPLICA, "from the start of a request's input to its first step"),
    (_C, "output_tokens_total", "tokens", _REPLICA, "tokens sampled; 0 of stages that have none"),
    (_C, "output_audio_seconds_total", "s of audio", _REPLICA, "audio put on the client lane"),
    (
        _C,
        "credit_wait_seconds_total",
        "s",
        _REPLICA,
        "time in which at least one request could not go on because an edge had no room; at most 1 s/s",
    ),
    (_C, "preemptions_total", "requests", _REPLICA, "sequences that gave up their KV cache blocks"),
    (_G, "kv_blocks", "blocks", _REPLICA, "size of the KV cache; 0 of stages that have none"),
    (_G, "kv_blocks_used", "blocks", _REPLICA, "in use"),
    (_C, "replica_deaths_total", "deaths", _REPLICA, "ends of the process that nobody had asked for; api-servers too"),
    (_C, "replica_restarts_total", "starts", _REPLICA, "joined again after a death; api-servers too"),
)
_CLIENT_LANE = (
    (
        _C,
        "client_messages_sent_total",
        "messages",
        (*_REPLICA, "process"),
        "outputs the replica has put on the client lane for the api-server `process`; deltas of a request that "
        "travel as one count once",
    ),
    (
        _C,
        "client_messages_consumed_total",
        "messages",
        (*_REPLICA, "process"),
        "of those, how many that api-server has read. The difference waits",
    ),
    (_C, "raw_rows_bytes_total", "bytes", _PROCESS, "rows of stages that came on the client lane and were dropped"),
    (
        _G,
        "client_queue_max",
        "messages",
        (*_REPLICA, "process"),
        "largest number of outputs that `process` found waiting at once, in its last two windows of a second",
    ),
    (
        _G,
        "client_oldest_output_s",
        "s",
        (*_REPLICA, "process"),
        "longest time that an output lay before `process` read it, in its last two windows of a second",
    ),
    (_G, "client_backlog_bytes", "bytes", _PROCESS, "outputs that wait in the api-server for clients to take them"),
)
_EDGES = (
    (
        _C,
        "edge_chunks_total",
        "chunks",
        _EDGE,
        "chunks that the replica has put on the edge, terminal markers included",
    ),
    (_C, "edge_rows_total", "rows", _EDGE, "rows in them"),
    (_C, "edge_bytes_total", "bytes", _EDGE, "payload of them"),
    (_C, "edge_send_seconds_total", "s", _EDGE, "time in the connector's `put` of them"),
    (
        _C,
        "edge_wait_seconds_total",
        "s",
        _EDGE,
        "time in which at least one chunk of the edge waited for room at its producer; at most 1 s/s",
    ),
    (
        _G,
        "edge_oldest_unreleased_s",
        "s",
        _EDGE,
        "age of the oldest chunk that its consumer has not released; 0 if none",
    ),
    (_G, "arena_bytes", "bytes", _REPLICA, "room for what the process has sent and consumers have not released"),
    (_G, "arena_used_bytes", "bytes", _REPLICA, "in use"),
    (_G, "arena_high_water_bytes", "bytes", _REPLICA, "most that was in use since the start"),
    (_G, "leases", "chunks", _REPLICA, "chunks with payload that consumers have not released"),
    (_C, "chunks_put_total", "chunks", _REPLICA, "sent on all edges"),
    (_C, "chunk_bytes_put_total", "bytes", _REPLICA, "payload of them"),
    (_C, "chunks_received_total", "chunks", _REPLICA, "received on all edges"),
    (_C, "chunk_bytes_received_total", "bytes", _REPLICA, "payload of them"),
    (_C, "chunks_failed_total", "chunks", _REPLICA, "arrived and could not be opened"),
    (_C, "chunks_refused_total", "chunks", _REPLICA, "attempts to send that found no room; each is tried again"),
)
_ORCHESTRATOR = (
    (_C, "loop_busy_seconds_total", "s", (), "time in which the orchestrator's loop worked; at most 1 s/s"),
    (_C, "loop_iterations_total", "iterations", (), "turns of the orchestrator's loop"),
    (_G, "loop_lag_s", "s", (), "longest turn in the last window of a second: a message may have waited that long"),
    (_C, "request_messages_total", "messages", (), "control messages about requests, in and out"),
    (_G, "aborts_pending", "requests", (), "told to stop and not released by every bound replica"),
    (_C, "aborts_acknowledged_total", "requests", (), "told to stop and since released by every bound replica"),
)
_LANES = (
    (_G, "uptime_s", "s", _PROCESS, "age of a process at its last report, to which all that it counts belongs"),
    (
        _C,
        "lane_messages_total",
        "messages",
        ("lane", "process"),
        "lane: control, control_unhurried (heard), control_out (said), client (said by replicas, heard by api-servers)",
    ),
    (_C, "lane_bytes_total", "bytes", ("lane", "process"), "of them"),
    (_G, "lane_max_message_bytes", "bytes", ("lane", "process"), "the largest of them"),
    (
        _C,
        "lane_unreached_total",
        "connections",
        ("lane", "process"),
        "connections that could not be opened because the process has as many files open as it may; each has failed a "
        "request. lane: also chunks (inter-stage)",
    ),
)
_ALL = {
    Group.REQUESTS: _REQUESTS,
    Group.LATENCY: _LATENCY,
    Group.STAGES: _STAGES,
    Group.CLIENT_LANE: _CLIENT_LANE,
    Group.EDGES: _EDGES,
    Group.ORCHESTRATOR: _ORCHESTRATOR,
    Group.LANES: _LANES,
}

FAMILIES: dict[str, Family] = {
    name: Family(name, kind, group, unit, labels, meaning)
    for group, rows in _ALL.items()
    for kind, name, unit, labels, meaning in rows
}
"""Name in a StatsReport -> family."""


def family_of(counter: str) -> Family | None:
    """The family that a Counter of that name belongs to: itself, or the histogram whose bucket, sum or count it is."""
    if counter in FAMILIES:
        return FAMILIES[counter]
    base, _, part = counter.rpartition("_")
    family = FAMILIES.get(base)
    is_part = family is not None and family.kind is Kind.HISTOGRAM and part in ("bucket", "sum", "count")
    return family if is_part else None


def markdown_table(group: Group) -> str:
    """The section of docs/metrics.md."""
    return "\n".join(_markdown_lines(group))


def _markdown_lines(group: Group) -> Iterator[str]:
    yield "| metric | kind | unit | labels | meaning |"
    yield "|---|---|---|---|---|"
    for family in FAMILIES.values():
        if family.group is group:
            labels = ", ".join(f"`{label}`" for label in family.labels)
            yield f"| `{family.page_name}` | {family.kind} | {family.unit} | {labels} | {family.meaning} |"
