"""Traces: written span by span, bounded, merged into one file of Chrome trace events."""

import json
import logging
from itertools import pairwise

import pytest

from antiphon.monitor.chrome_trace import write_chrome_trace
from antiphon.monitor.trace import FileTrace, NoTrace, open_trace, read_spans, traced_processes
from antiphon.transport.address import RunDirectory


@pytest.fixture
def directory(tmp_path):
    return RunDirectory(tmp_path)


def merged(directory, tmp_path) -> list[dict]:
    target = tmp_path / "trace.json"
    write_chrome_trace(directory, target)
    return json.loads(target.read_text())["traceEvents"]


def test_without_tracing_there_is_no_file(directory):
    trace = open_trace(str(directory.path), "talker/0", is_on=False)
    trace.add("req-1", "queue", 1.0, 2.0)
    assert isinstance(trace, NoTrace)
    assert list(directory.path.iterdir()) == []


def test_every_span_is_in_the_file_before_add_returns_and_a_restarted_process_goes_on(directory):
    first = open_trace(str(directory.path), "talker/0", is_on=True)
    first.add("req-1", "queue", 1.0, 2.0)
    first.add("req-1", "never began", 0.0, 2.0)
    assert [span.name for span in read_spans(directory, "talker/0")] == ["queue"]
    directory.file("talker/0", "trace").open("ab").write(b'["req-1","cut o')  # by a kill in the middle of a write
    second = open_trace(str(directory.path), "talker/0", is_on=True)
    second.add("req-2", "generate", 3.0, 4.0)
    assert [span.name for span in read_spans(directory, "talker/0")] == ["queue", "generate"]
    assert traced_processes(directory) == ["talker/0"]


def test_a_trace_has_a_largest_size_also_over_restarts(directory, caplog):
    path = directory.file("talker/0", "trace")
    for _ in range(2):
        trace = FileTrace(path, max_bytes=500)
        trace.startup()
        for number in range(100):
            trace.add(f"req-{number}", "queue", 1.0, 2.0)
    assert 400 < path.stat().st_size <= 500
    assert caplog.messages[0].startswith("the trace of this process ends here")


def test_a_trace_that_cannot_be_written_ends_and_says_so_once(directory, caplog):
    caplog.set_level(logging.WARNING)
    trace = FileTrace(directory.path / "nowhere" / "x")
    trace.startup()
    trace.add("req-1", "queue", 1.0, 2.0)
    trace.close()
    assert len(caplog.messages) == 1
    full = FileTrace(directory.path / "full")
    (directory.path / "full").symlink_to("/dev/full")
    full.startup()
    for _ in range(3):
        full.add("req-1", "queue", 1.0, 2.0)
    assert len(caplog.messages) == 2
    assert "No space left on device" in caplog.messages[1]


def test_each_process_is_a_row_and_requests_that_overlap_have_lanes_of_their_own(directory, tmp_path):
    trace = open_trace(str(directory.path), "talker/0", is_on=True)
    trace.add("req-1", "generate", 1.0, 5.0)
    trace.add("req-1", "wait for credit", 2.0, 3.0)
    trace.add("req-2", "generate", 2.0, 4.0)
    trace.add("req-3", "generate", 6.0, 7.0)
    events = merged(directory, tmp_path)
    assert events[0] == {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "talker/0"}}
    spans = {(event["args"]["request"], event["name"]): event for event in events if event["ph"] == "X"}
    assert (
        spans["req-1", "generate"]["tid"]
        == spans["req-1", "wait for credit"]["tid"]
        == spans["req-3", "generate"]["tid"]
    )
    assert spans["req-2", "generate"]["tid"] != spans["req-1", "generate"]["tid"]
    assert (spans["req-1", "generate"]["ts"], spans["req-1", "generate"]["dur"]) == (1e6, 4e6)


def test_arrows_join_the_parts_of_one_request_in_the_order_in_which_they_began(directory, tmp_path):
    for process, start_s in (("talker/0", 2.0), ("api-server/0", 1.0), ("code2wav/0", 3.0)):
        open_trace(str(directory.path), process, is_on=True).add("req-1", "generate", start_s, 9.0)
    open_trace(str(directory.path), "talker/0", is_on=True).add("req-2", "generate", 2.0, 3.0)
    events = merged(directory, tmp_path)
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    arrows = [(event["ph"], event["id"], names[event["pid"]]) for event in events if event["ph"] in "sf"]
    assert arrows == [
        ("s", 1, "api-server/0"),
        ("f", 1, "talker/0"),
        ("s", 2, "talker/0"),
        ("f", 2, "code2wav/0"),
    ]


def test_spans_that_follow_one_another_or_lie_in_one_another_do_so_to_the_last_digit(directory, tmp_path):
    trace = open_trace(str(directory.path), "talker/0", is_on=True)
    moments = [15_153.408_243_749 + 0.000_123_457 * number for number in range(200)]
    trace.add("req-1", "request", moments[0], moments[-1])
    for start_s, stop_s in pairwise(moments):
        trace.add("req-1", "step", start_s, stop_s)
    outer, *steps = [event for event in merged(directory, tmp_path) if event["ph"] == "X"]
    assert (outer["name"], len(steps), {event["tid"] for event in steps}) == ("request", 199, {outer["tid"]})
    for before, after in pairwise(steps):
        assert before["ts"] + before["dur"] == after["ts"]
    assert (outer["ts"], outer["ts"] + outer["dur"]) == (steps[0]["ts"], steps[-1]["ts"] + steps[-1]["dur"])
