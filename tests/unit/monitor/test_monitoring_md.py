"""docs/monitoring.md against the code: the fields of the file, and the verdict's thresholds."""

import re
from pathlib import Path

import pytest

from antiphon.monitor import verdict
from antiphon.monitor.windows import EdgeWindow, LoopWindow, ReplicaWindow

TEXT = (Path(__file__).parents[3] / "docs/monitoring.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("group", "record"), [("windows", LoopWindow), ("replicas", ReplicaWindow), ("edges", EdgeWindow)]
)
def test_every_field_of_the_file_is_documented_and_every_documented_one_is_in_it(group, record) -> None:
    (table,) = re.findall(rf"\| `{group}` \| meaning \|\n(.*?)\n\n", TEXT, re.DOTALL)
    first_cells = [row.split("|")[1] for row in table.splitlines()[1:]]
    assert [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)] == list(record.__struct_fields__)


def test_the_documented_thresholds_are_the_codes() -> None:
    for part in (
        verdict.LOOP_BUSY,
        verdict.STEP_BUSY,
        verdict.STARVED_OF_CREDIT,
        verdict.UPSTREAM_WAITS,
        verdict.STEP_BUSY_MARGIN,
    ):
        assert f"{100 * part:.0f} %" in TEXT
    assert f"{verdict.OLD_OUTPUT_S:g} s on average" in TEXT
