"""The recorder and its journal on a loop that the test turns: windows, and faults that stay inside."""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from antiphon.config.deploy import MonitorDeploy
from antiphon.messages.control import Counter, StatsReport
from antiphon.monitor import journal as journal_module
from antiphon.monitor.factory import make_monitor, target_path
from antiphon.monitor.lines import lines_path
from antiphon.monitor.recorder import NO_MONITOR, LoopMonitor
from antiphon.monitor.windows import HostSnapshot, ReceivedReport

WINDOW_S = 0.02
TALKER = "stage=talker,replica=0"


def look() -> HostSnapshot:
    pools = (Counter("replica_inflight", (("replica", "talker/0"),), 2.0), Counter("requests_inflight", (), 2.0))
    return HostSnapshot((ReceivedReport(time.monotonic(), StatsReport("talker/0", ())),), pools)


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "m.json"
    monkeypatch.setenv("ANTIPHON_ORCH_MONITOR_PATH", str(path))
    before = set(threading.enumerate())
    yield path
    assert set(threading.enumerate()) <= before, "the monitor's thread has not ended"


def turned(num_windows: int = 4, look: Callable[[], HostSnapshot] = look, write_s: float = 10.0) -> LoopMonitor:
    """A monitor whose loop has turned until so many windows were closed; not closed itself."""
    so_far = 0

    def counted() -> HostSnapshot:
        nonlocal so_far
        so_far += 1
        return look()

    monitor = make_monitor(MonitorDeploy(enabled=True, window_s=WINDOW_S, write_s=write_s), counted)
    monitor.startup()
    num_messages = 0
    while so_far < num_windows:
        monitor.turn_begins()
        num_messages += 1
        monitor.turn_ends(num_messages, 0.001)
        time.sleep(0.001)
        monitor.turn_begins()
        monitor.turn_ends(num_messages, 0.0)
    return monitor


def num_lines(target: Path) -> int:
    path = lines_path(target)
    return path.read_bytes().count(b"\n") if path.exists() else 0


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_monitor_that_is_off_is_the_null_object_and_writes_nothing(target: Path) -> None:
    monitor = make_monitor(MonitorDeploy(), look)
    assert monitor is NO_MONITOR
    monitor.startup()
    monitor.turn_begins()
    monitor.turn_ends(1, 0.0)
    monitor.close()
    assert list(target.parent.iterdir()) == []


def test_windows_are_in_the_columnar_file_and_the_lines_are_gone(target: Path, caplog) -> None:
    caplog.set_level(logging.INFO)
    turned().close()
    found = json.loads(target.read_text())
    windows = found["windows"]
    assert len(windows["duration_s"]) >= 4
    assert found["configured_window_s"] == WINDOW_S
    assert sum(windows["loop_idle"]) > 0
    assert sum(windows["request_messages"]) == sum(windows["loop_active"]) > 0
    assert all(seconds >= WINDOW_S for seconds in windows["duration_s"][:-1])
    assert all(busy < seconds for busy, seconds in zip(windows["busy_s"], windows["duration_s"], strict=True))
    assert set(found["replicas"][TALKER]["inflight"]) == {2}
    assert list(target.parent.iterdir()) == [target]
    logged = "\n".join(record.getMessage() for record in caplog.records)
    assert "talker/0: output queue 0.0 on average, at most 0; in flight 2.0 on average, at most 2" in logged
    assert f"the monitor's windows are in {target}" in logged
    assert not errors(caplog)


def test_every_closed_window_is_on_disk_before_the_run_ends(target: Path) -> None:
    monitor = turned(num_windows=6)
    deadline_s = time.monotonic() + 5.0
    while num_lines(target) < 7 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert num_lines(target) == 7  # the header, too
    assert not target.exists()
    monitor.close()


def test_a_turn_that_takes_long_is_a_long_window(target: Path) -> None:
    monitor = turned(1)
    monitor.turn_begins()
    time.sleep(5 * WINDOW_S)
    monitor.turn_ends(0, 0.0)
    monitor.close()
    windows = json.loads(target.read_text())["windows"]
    assert max(windows["duration_s"]) >= 5 * WINDOW_S
    longest = windows["duration_s"].index(max(windows["duration_s"]))
    assert windows["longest_iteration_s"][longest] >= 5 * WINDOW_S
    assert windows["busy_s"][longest] >= 5 * WINDOW_S


def test_a_wait_that_ends_late_is_lateness_and_lag(target: Path) -> None:
    monitor = turned(1)
    monitor.turn_begins()
    monitor.turn_ends(0, 0.001)
    time.sleep(5 * WINDOW_S)  # the process was kept from running
    monitor.turn_begins()
    monitor.turn_ends(0, 0.0)
    monitor.close()
    windows = json.loads(target.read_text())["windows"]
    assert max(windows["late_s"]) >= 4 * WINDOW_S
    assert max(windows["loop_lag_max_s"]) >= 4 * WINDOW_S
    latest = windows["late_s"].index(max(windows["late_s"]))
    assert windows["busy_s"][latest] < windows["late_s"][latest]


def test_an_orchestrator_that_cannot_be_looked_at_costs_its_figures_only(target: Path, caplog) -> None:
    def broken() -> HostSnapshot:
        raise KeyError("talker/0 has just gone")

    turned(look=broken).close()
    found = json.loads(target.read_text())
    assert len(found["windows"]["duration_s"]) >= 4 and sum(found["windows"]["loop_idle"]) > 0
    assert found["windows"]["num_monitor_faults"][-1] >= 4
    (logged,) = errors(caplog)
    assert "looking at the orchestrator" in logged and "talker/0 has just gone" in logged


def test_a_sampler_that_raises_is_logged_once_and_counted_and_the_loops_figures_stay(target: Path, caplog) -> None:
    nameless = HostSnapshot((), (Counter("replica_inflight", (), 1.0),))  # a counter without its label
    turned(look=lambda: nameless).close()
    found = json.loads(target.read_text())
    assert len(found["windows"]["duration_s"]) >= 4 and sum(found["windows"]["loop_idle"]) > 0
    assert found["windows"]["num_monitor_faults"][-1] >= 1
    (logged,) = errors(caplog)
    assert "failed at sampling" in logged


def test_a_full_disk_is_logged_once_per_kind_and_the_loop_goes_on(target: Path, caplog) -> None:
    lines_path(target).symlink_to("/dev/full")
    turned(8).close()
    assert not target.exists()
    writing = [line for line in errors(caplog) if "No space left" in line]
    assert len(writing) == 1 and str(lines_path(target)) in writing[0]
    assert len(errors(caplog)) <= 2  # the other: there is nothing to make the columnar file from


def test_a_disk_that_is_full_at_the_end_leaves_the_lines(target: Path, caplog) -> None:
    target.with_name("m.json.tmp").symlink_to("/dev/full")
    turned().close()
    assert lines_path(target).exists() and not target.exists()
    (logged,) = errors(caplog)
    assert "writing the columnar file" in logged and "No space left" in logged


def test_a_path_that_cannot_be_written_is_logged_once_and_the_loop_goes_on(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setenv("ANTIPHON_ORCH_MONITOR_PATH", str(tmp_path / "no" / "such" / "folder" / "m.json"))
    turned(6).close()
    assert list(tmp_path.iterdir()) == []
    assert "No such file or directory" in errors(caplog)[0]
    assert len(errors(caplog)) == 2  # the other: there is nothing to make the columnar file from


def test_windows_are_written_from_when_the_path_can_be_written(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "late"
    monkeypatch.setenv("ANTIPHON_ORCH_MONITOR_PATH", str(folder / "m.json"))
    monitor = turned(4)
    folder.mkdir()
    monitor.turn_begins()
    time.sleep(WINDOW_S)
    monitor.turn_ends(0, 0.0)
    monitor.close()
    windows = json.loads((folder / "m.json").read_text())["windows"]
    assert windows["num_monitor_faults"][-1] >= 1


def test_a_disk_that_does_not_answer_holds_up_neither_a_turn_nor_the_end(target: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(journal_module, "_MAX_QUEUED", 3)
    let_go, real, before = threading.Event(), os.write, set(threading.enumerate())

    def slow(fd: int, data: bytes) -> int:
        let_go.wait(20.0)
        return real(fd, data)

    with monkeypatch.context() as hanging:
        hanging.setattr(os, "write", slow)
        began_s = time.monotonic()
        monitor = turned(12, write_s=0.1)
        monitor.close()
        assert time.monotonic() - began_s < 10.0
        assert any("3 windows wait for the disk" in line for line in errors(caplog))
        assert any("antiphon monitor convert" in line for line in errors(caplog))
        let_go.set()
        for writer in set(threading.enumerate()) - before:
            writer.join(10.0)


def test_the_file_is_named_after_the_time_in_the_working_directory(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("ANTIPHON_ORCH_MONITOR_PATH", raising=False)
    monkeypatch.chdir(tmp_path)
    before, path = time.strftime("antiphon_orch_monitor_%m%d%H%M.json"), target_path()
    assert path.parent == tmp_path
    assert path.name in (before, time.strftime("antiphon_orch_monitor_%m%d%H%M.json"))
