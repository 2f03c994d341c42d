"""Summaries, verdicts since when, and pictures of files that are written down by hand."""

import re
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from antiphon.cli.main import cli
from antiphon.errors import ConfigError
from antiphon.monitor.columns import Columns, ColumnSpool, read_columns
from antiphon.monitor.plot import write_plot
from antiphon.monitor.summary import stretches_of, summary_lines, verdict_on
from antiphon.monitor.windows import (
    EdgeWindow,
    LoopWindow,
    ReplicaWindow,
    Window,
    edge_key,
    parts_of_key,
    replica_key,
)

NEXT = {"thinker": "talker", "talker": "code2wav"}
START_UNIX_S = 1_795_982_417.0
IDLE, TALKER_FULL, LOOP_BUSY = "idle", "talker full", "loop busy"


def window(kind: str, ended_unix_s: float, num_replicas: int = 1, duration_s: float = 1.0) -> Window:
    is_idle = kind == IDLE
    replicas, edges = {}, {}
    for stage in ("code2wav", "talker", "thinker"):
        for index in range(num_replicas):
            is_full = kind == TALKER_FULL and stage == "talker"
            replicas[replica_key(stage, str(index))] = ReplicaWindow(
                outputs_queue_size=0 if is_idle else 3,
                outputs_queue_max=0 if is_idle else 9,
                inflight=0 if is_idle else 6,
                inflight_max=0 if is_idle else 8,
                running=0 if is_idle else 4,
                waiting=4 if is_full else 0,
                slots=4,
                step_busy_s=duration_s * (0.95 if is_full else 0.0 if is_idle else 0.2),
            )
            if stage in NEXT:
                edges[edge_key(f"{stage}->{NEXT[stage]}", f"{stage}/{index}")] = EdgeWindow(chunks=5.0, bytes=10**6)
    loop = LoopWindow(
        ended_unix_s=ended_unix_s,
        duration_s=duration_s,
        loop_idle=20,
        loop_active=0 if is_idle else 60,
        busy_s=duration_s * (0.97 if kind == LOOP_BUSY else 0.05),
        requests_inflight=0 if is_idle else 6,
    )
    return Window(loop, replicas, edges)


def file_of(folder: Path, *kinds: str, num_replicas: int = 1) -> Columns:
    spool = ColumnSpool(folder)
    for number, kind in enumerate(kinds, start=1):
        spool.add(window(kind, START_UNIX_S + number, num_replicas))
    spool.write(folder / "m.json", 1.0)
    spool.close()
    return read_columns(folder / "m.json")


@pytest.mark.parametrize(
    "key", [replica_key("talker", "1"), edge_key("talker->code2wav", "talker/1")], ids=["replica", "edge"]
)
def test_keys_are_read_as_they_were_made(key: str) -> None:
    assert parts_of_key(key) == (("talker", "1") if key.startswith("stage") else ("talker->code2wav", "talker/1"))


def test_the_summary_has_the_loop_and_averages_and_maxima_per_replica(tmp_path: Path) -> None:
    lines = summary_lines(file_of(tmp_path, *[IDLE] * 5, *[TALKER_FULL] * 5))
    assert lines[0].startswith("10 windows, 10.0 s (longest window 1.00 s), loop active in 60.0 % of its turns")
    assert lines[2] == "talker/0: output queue 1.5 on average, at most 9; in flight 3.0 on average, at most 8"
    assert len(lines) == 4


def test_the_verdict_is_about_the_time_with_requests(tmp_path: Path) -> None:
    columns = file_of(tmp_path, *[IDLE] * 60, *[TALKER_FULL] * 10, *[IDLE] * 30)
    assert verdict_on(columns).bottleneck == "talker"
    assert "95 % of the time" in verdict_on(columns).reason


def test_a_run_without_requests_has_no_bottleneck(tmp_path: Path) -> None:
    assert str(verdict_on(file_of(tmp_path, *[IDLE] * 9))) == "there was no request"
    assert verdict_on(file_of(tmp_path)).bottleneck == ""


def test_each_stretch_of_time_says_what_held_the_server_up_since_when(tmp_path: Path) -> None:
    columns = file_of(tmp_path, *[TALKER_FULL] * 20, *[LOOP_BUSY] * 10, *[IDLE] * 10)
    found = [(s.verdict.bottleneck, s.began_unix_s - START_UNIX_S, s.ended_unix_s - START_UNIX_S)
             for s in stretches_of(columns)]  # fmt: skip
    assert found == [("talker", 0.0, 20.0), ("orchestrator", 20.0, 30.0), ("", 30.0, 40.0)]
    assert verdict_on(columns).bottleneck == "talker"  # for twice as long


def test_a_rest_that_is_too_short_for_a_verdict_belongs_to_what_was_before_it(tmp_path: Path) -> None:
    (stretch,) = stretches_of(file_of(tmp_path, *[TALKER_FULL] * 10, *[LOOP_BUSY] * 2))
    assert (stretch.verdict.bottleneck, stretch.first, stretch.last) == ("talker", 0, 12)


def test_a_long_run_has_at_most_60_stretches(tmp_path: Path) -> None:
    columns = file_of(tmp_path, *([TALKER_FULL] * 40 + [LOOP_BUSY] * 40) * 40)
    assert 2 <= len(stretches_of(columns)) <= 60


def test_show_prints_summary_stretches_and_verdict(tmp_path: Path) -> None:
    file_of(tmp_path, *[TALKER_FULL] * 6)
    result = CliRunner().invoke(cli, ["monitor", "show", str(tmp_path / "m.json")])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith("6 windows")
    assert re.fullmatch(r"\d\d:\d\d:\d\d to \d\d:\d\d:\d\d  talker is the bottleneck: .*", lines[-2])
    assert lines[-1].startswith("verdict: talker is the bottleneck: 1 of 1 replicas saturated")


def test_convert_refuses_to_write_over_its_input(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text("{}")
    result = CliRunner().invoke(cli, ["monitor", "convert", str(tmp_path / "m.json")])
    assert isinstance(result.exception, ConfigError) and "over itself" in str(result.exception)


@pytest.mark.parametrize("num_replicas", [1, 4, 20], ids=["1", "12 in all", "more than 12 of a stage"])
def test_a_picture_has_a_row_per_stage_and_names_every_line(tmp_path: Path, num_replicas: int) -> None:
    columns = file_of(tmp_path, *[IDLE] * 3, *[TALKER_FULL] * 5, num_replicas=num_replicas)
    write_plot(columns, tmp_path / "m.svg", title="m.json")
    comments = re.findall(r"<!-- (.*?) -->", (tmp_path / "m.svg").read_text())  # what the glyphs spell
    titles = [text for text in comments if "requests in flight (dotted" in text]
    assert [title.partition(":")[0] for title in titles] == ["thinker", "talker", "code2wav"]
    names = {f"talker/{index}" for index in range(num_replicas)}
    if num_replicas > 12:
        names = {f"{which} of 20 talker" for which in ("highest", "middle", "lowest")}
    assert names | {"active turns", "busy", "late", "requests waiting", "talker-&gt;code2wav"} <= set(comments)


def test_a_picture_is_a_png_or_a_page_that_needs_no_network(tmp_path: Path) -> None:
    columns = file_of(tmp_path, *[TALKER_FULL] * 2000)
    write_plot(columns, tmp_path / "m.png", title="m.json")
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")
    write_plot(columns, tmp_path / "m.html", title="<m>.json")
    page = (tmp_path / "m.html").read_text()
    assert page.startswith("<!doctype html>") and "<title>&lt;m&gt;.json</title>" in page and "</svg>" in page
    assert not re.findall(r"""(?:src|href)=["'](?!#)""", page)
    assert len(page) < 500_000


@pytest.mark.parametrize(("name", "says"), [("m.gif", "ends in .png"), ("no/m.png", "could not be written")])
def test_a_picture_that_cannot_be_made_is_an_error_that_says_why(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        write_plot(file_of(tmp_path, TALKER_FULL), tmp_path / name, title="m.json")


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install -e '.\[plot\]'"):
        write_plot(file_of(tmp_path, TALKER_FULL), tmp_path / "m.png", title="m.json")


def test_an_empty_file_is_not_drawn(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no window to draw"):
        write_plot(file_of(tmp_path), tmp_path / "m.png", title="m.json")


def test_columns_are_what_json_says(tmp_path: Path) -> None:
    columns = file_of(tmp_path, *[TALKER_FULL] * 3)
    assert msgspec.json.decode((tmp_path / "m.json").read_bytes()) == msgspec.to_builtins(columns)
