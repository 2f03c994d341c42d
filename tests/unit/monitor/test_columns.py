"""The monitor's two files: lines that survive a kill, columns made of them by streaming."""

import json
import os
from pathlib import Path

import pytest

from antiphon.errors import ConfigError
from antiphon.monitor import columns as columns_module
from antiphon.monitor.columns import ColumnSpool, convert, read_columns
from antiphon.monitor.lines import LinesReader, LinesWriter, lines_path
from antiphon.monitor.windows import EdgeWindow, Header, LoopWindow, ReplicaWindow, Window

FIRST, SECOND, EDGE = "stage=talker,replica=0", "stage=talker,replica=1", "edge=a->b,replica=a/0"


def run_of(num_windows: int) -> list[Window]:
    """talker/0 is there in the first half, talker/1 from the second window on; an edge only in the last window."""
    windows = []
    for number in range(num_windows):
        replicas = {}
        if number < num_windows / 2:
            replicas[FIRST] = ReplicaWindow(inflight=number + 1)
        if number:
            replicas[SECOND] = ReplicaWindow(inflight=7, step_busy_s=0.25)
        edges = {EDGE: EdgeWindow(chunks=2.5)} if number == num_windows - 1 else {}
        windows.append(Window(LoopWindow(duration_s=1.0 + number, loop_active=number), replicas, edges))
    return windows


def write_lines(path: Path, windows: list[Window], *, target: Path | None = None) -> Path:
    writer = LinesWriter(target or path.with_suffix(".json"), Header(1.0))
    for window in windows:
        writer.write(window)
    writer.close()
    return writer.path


def columns_of(path: Path) -> dict:
    return json.loads(path.read_text())


@pytest.mark.parametrize("block", [1, 2, 3, 2048])
def test_replicas_that_join_and_leave_have_a_value_for_every_window(tmp_path, monkeypatch, block) -> None:
    monkeypatch.setattr(columns_module, "BLOCK_WINDOWS", block)
    lines = write_lines(tmp_path / "m.jsonl", run_of(6))
    convert(lines, tmp_path / "m.json").close()
    found = columns_of(tmp_path / "m.json")
    assert found["configured_window_s"] == 1.0
    assert found["windows"]["duration_s"] == [1, 2, 3, 4, 5, 6]
    assert found["windows"]["loop_active"] == [0, 1, 2, 3, 4, 5]
    assert found["replicas"][FIRST]["inflight"] == [1, 2, 3, 0, 0, 0]
    assert found["replicas"][SECOND]["inflight"] == [0, 7, 7, 7, 7, 7]
    assert found["edges"][EDGE]["chunks"] == [0, 0, 0, 0, 0, 2.5]
    fields = [found["windows"], *found["replicas"].values(), *found["edges"].values()]
    assert {len(values) for group in fields for values in group.values()} == {6}
    assert set(found["windows"]) == set(LoopWindow.__struct_fields__)
    assert set(found["replicas"][FIRST]) == set(ReplicaWindow.__struct_fields__)


def test_a_run_without_windows_is_a_file_with_empty_columns(tmp_path) -> None:
    spool = ColumnSpool(tmp_path)
    spool.write(tmp_path / "m.json", 1.0)
    found = columns_of(tmp_path / "m.json")
    assert found["windows"]["duration_s"] == [] and found["replicas"] == {} and found["edges"] == {}


def test_a_line_that_was_torn_by_a_kill_is_left_out(tmp_path) -> None:
    lines = write_lines(tmp_path / "m.jsonl", run_of(5))
    whole = lines.read_bytes()
    for cut in (1, 2, 40):
        lines.write_bytes(whole[:-cut])
        convert(lines, tmp_path / "m.json").close()
        assert read_columns(tmp_path / "m.json").num_windows == (5 if cut == 1 else 4)


def test_a_write_that_fails_half_way_costs_one_window(tmp_path, monkeypatch) -> None:
    writer = LinesWriter(tmp_path / "m.json", Header(1.0))
    windows = run_of(4)
    writer.write(windows[0])
    real = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda fd, line: real(fd, line[:20]))
        with pytest.raises(OSError, match="only 20 of"):
            writer.write(windows[1])
    writer.write(windows[2])
    writer.close()
    reader = LinesReader(writer.path)
    assert [window.window.duration_s for window in reader.windows()] == [1.0, 3.0]
    assert reader.num_torn == 1


def test_the_lines_of_a_run_that_was_killed_are_kept(tmp_path) -> None:
    left = write_lines(tmp_path / "m.jsonl", run_of(2)).read_bytes()
    write_lines(tmp_path / "m.jsonl", run_of(3))
    assert (tmp_path / "m.left1.jsonl").read_bytes() == left
    assert sum(1 for _ in LinesReader(tmp_path / "m.jsonl").windows()) == 3


def test_two_servers_of_one_path_write_two_files(tmp_path) -> None:
    target = tmp_path / "m.json"
    one, two = (LinesWriter(target, Header(1.0)) for _ in range(2))
    for writer in (one, two):
        writer.write(run_of(1)[0])
    assert (one.target, two.target) == (target, tmp_path / "m_2.json")
    assert two.path == tmp_path / "m_2.jsonl"


@pytest.mark.parametrize(("target", "lines"), [("m.json", "m.jsonl"), ("load.v2", "load.v2.jsonl")])
def test_the_lines_are_beside_the_columns(target, lines) -> None:
    assert lines_path(Path("/x") / target) == Path("/x") / lines


def test_a_file_that_is_no_monitors_is_an_error_that_names_it(tmp_path) -> None:
    for name, text in (("a.json", "[]"), ("b.jsonl", "nothing\n"), ("c.json", "")):
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match=f"{name} is no file of the monitor"):
            read_columns(tmp_path / name)


def test_columns_of_different_lengths_are_an_error(tmp_path) -> None:
    lines = write_lines(tmp_path / "m.jsonl", run_of(3))
    convert(lines, tmp_path / "m.json").close()
    text = (tmp_path / "m.json").read_text().replace('"loop_idle":[0,0,0]', '"loop_idle":[0,0]')
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(ConfigError, match="different lengths"):
        read_columns(tmp_path / "m.json")


def test_lines_are_read_like_the_columns_they_would_make(tmp_path) -> None:
    lines = write_lines(tmp_path / "m.jsonl", run_of(7))
    convert(lines, tmp_path / "m.json").close()
    assert read_columns(lines) == read_columns(tmp_path / "m.json")


def test_only_a_plain_file_is_replaced(tmp_path) -> None:
    spool = ColumnSpool(tmp_path)
    (tmp_path / "m.json").mkdir()
    with pytest.raises(OSError, match="not a plain file"):
        spool.write(tmp_path / "m.json", 1.0)


def test_sums_and_maxima_are_those_of_the_columns(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(columns_module, "BLOCK_WINDOWS", 2)
    lines = write_lines(tmp_path / "m.jsonl", run_of(5))
    spool = convert(lines, tmp_path / "m.json")
    columns = read_columns(tmp_path / "m.json")
    for wanted in (("replicas", SECOND, "inflight"), ("windows", "", "duration_s"), ("edges", EDGE, "chunks")):
        assert spool.total(*wanted) == columns.total(*wanted) != (0, 0)
    assert spool.total("replicas", "none", "inflight") == columns.total("replicas", "none", "inflight") == (0, 0)
    assert spool.keys("replicas") == columns.keys("replicas") == [FIRST, SECOND]
