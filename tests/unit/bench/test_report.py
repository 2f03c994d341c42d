import io
import json
from pathlib import Path

from rich.console import Console

from antiphon.bench.measures import Bound, Goal, Row
from antiphon.bench.report import Report, as_table, fingerprint, write_json

MET = Row("TTFT", "ms", 12.0, 10.0, Goal(Bound.AT_MOST, 1.3))
MISSED = Row("tokens / s", "tok/s", 70.0, 100.0, Goal(Bound.AT_LEAST, 0.8))
CONTEXT = Row("audio", "audio s/s", 150.0, 100.0)


def test_the_table_shows_both_figures_their_ratio_and_whether_the_goal_is_met() -> None:
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(as_table([MET, MISSED, CONTEXT], "bench"))
    lines = console.export_text().splitlines()
    met, missed, context = (next(line for line in lines if row.measure in line) for row in (MET, MISSED, CONTEXT))
    assert [cell.strip() for cell in met.split("│")[2:-1]] == ["12", "10 ms", "1.20", "at most 1.3 x", "yes"]
    assert [cell.strip() for cell in missed.split("│")[2:-1]] == ["70", "100 tok/s", "0.70", "at least 0.8 x", "no"]
    assert [cell.strip() for cell in context.split("│")[2:-1]] == ["150", "100 audio s/s", "1.50", "", ""]


def test_the_json_holds_rows_distributions_and_the_machine(tmp_path: Path) -> None:
    report = Report((MET, MISSED, CONTEXT), {"TTFT, ms": [10.0, 12.0, 14.0]}, {"cores": 2})
    write_json(report, tmp_path / "bench.json")
    written = json.loads((tmp_path / "bench.json").read_text())
    assert written["environment"] == {"cores": 2}
    assert written["num_missed"] == 1
    assert written["rows"][0]["ratio"] == 1.2 and written["rows"][0]["met"] is True
    assert written["rows"][2]["goal"] is None and written["rows"][2]["met"] is None
    assert written["distributions"]["TTFT, ms"]["median"] == 12.0


def test_the_fingerprint_tells_cores_versions_and_load() -> None:
    machine = fingerprint()
    cores, load = machine["cores"], machine["load_average"]
    assert isinstance(cores, int) and cores >= 1
    assert isinstance(load, list) and len(load) == 3
    packages = machine["packages"]
    assert isinstance(packages, dict) and packages["numpy"] != "not installed"
