"""The traces of all processes as one file of Chrome trace events, which Perfetto and chrome://tracing open.

In: a run directory with traces. Out: JSON. Does not know: who wrote the traces.

Each process is a row; in it, requests that overlap lie in lanes of their own ("threads"). A request's spans in
different processes are joined by flow arrows, in the order in which they began.
"""

import heapq
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec

from antiphon.monitor.trace import Span, read_spans, traced_processes
from antiphon.transport.address import RunDirectory

Event = dict[str, str | int | float | dict[str, str]]
_US = 1e6
_FLOW = "request"


def write_chrome_trace(directory: RunDirectory, target: Path) -> int:
    """Merge what the processes have written; gives the number of spans. OSError if `target` cannot be written."""
    encoder = msgspec.json.Encoder()
    num_spans = 0
    with target.open("wb") as out:
        out.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        separator = b""
        for event in _events(directory):
            num_spans += event["ph"] == "X"
            out.write(separator + encoder.encode(event))
            separator = b",\n"
        out.write(b"\n]}\n")
    return num_spans


def _events(directory: RunDirectory) -> Iterator[Event]:
    entries: dict[str, list[tuple[float, int, int]]] = {}
    for pid, process in enumerate(traced_processes(directory), start=1):
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": process}}
        by_request: dict[str, list[Span]] = {}
        for span in read_spans(directory, process):
            by_request.setdefault(span.request_id, []).append(span)
        for lane, spans in _lanes(by_request):
            entries.setdefault(spans[0].request_id, []).append((spans[0].start_s, pid, lane))
            for span in spans:
                yield _complete(span, pid, lane)
    arrows = ((name, *ends) for name, places in entries.items() for ends in pairwise(sorted(places)))
    for number, (request_id, start, stop) in enumerate(arrows, start=1):
        yield {"ph": "s", "id": number, **_flow(request_id, *start)}
        yield {"ph": "f", "bp": "e", "id": number, **_flow(request_id, *stop)}


def _lanes(by_request: dict[str, list[Span]]) -> Iterator[tuple[int, list[Span]]]:
    """Each request's spans, outer before inner, and the lowest lane that is free for as long as they last."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    num_lanes = 0
    ordered = [sorted(spans, key=lambda span: (span.start_s, -span.stop_s)) for spans in by_request.values()]
    for spans in sorted(ordered, key=lambda spans: spans[0].start_s):
        while busy and busy[0][0] <= spans[0].start_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            num_lanes += 1
            heapq.heappush(free, num_lanes)
        lane = heapq.heappop(free)
        heapq.heappush(busy, (max(span.stop_s for span in spans), lane))
        yield lane, spans


def _complete(span: Span, pid: int, lane: int) -> Event:
    return {
        "ph": "X",
        "name": span.name,
        "cat": "stage",
        "pid": pid,
        "tid": lane,
        "ts": _us(span.start_s),
        "dur": _us(span.stop_s) - _us(span.start_s),
        "args": {"request": span.request_id},
    }


def _flow(request_id: str, start_s: float, pid: int, lane: int) -> Event:
    return {
        "name": _FLOW,
        "cat": _FLOW,
        "pid": pid,
        "tid": lane,
        "ts": _us(start_s),
        "args": {"request": request_id},
    }


def _us(time_s: float) -> int:
    """Whole, so that a span that follows another does not begin a rounding error before its end."""
    return round(time_s * _US)
