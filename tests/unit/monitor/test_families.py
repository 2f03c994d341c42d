"""The table of metric families, and what is made of it: docs/metrics.md, the dashboard."""

import json
import re
from pathlib import Path

import pytest

from antiphon.monitor.families import FAMILIES, PREFIX, Group, Kind, family_of, markdown_table

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((ROOT / "deploy/grafana-antiphon.json").read_text(encoding="utf-8"))
UNIT_WORDS = {"s": "seconds", "s of audio": "seconds", "bytes": "bytes"}


@pytest.mark.parametrize("group", list(Group))
def test_every_family_is_documented_as_the_table_says(group):
    assert f"\n## {group}\n\n{markdown_table(group)}\n" in DOCUMENT


def test_the_document_names_no_metric_that_is_not_in_the_table():
    named = {name for name in re.findall(rf"`({PREFIX}\w+)`", DOCUMENT) if name != f"{PREFIX}http_"}
    assert named == {family.page_name for family in FAMILIES.values()}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_a_family_has_its_unit_in_its_name_and_a_meaning(family):
    assert len(family.meaning) > 5
    assert family.page_name.endswith("_total") == (family.kind is Kind.COUNTER)
    if family.unit in UNIT_WORDS:
        assert f"_{UNIT_WORDS[family.unit]}" in family.page_name


def test_parts_of_a_histogram_belong_to_it_and_parts_of_others_to_nobody():
    assert family_of("queue_seconds_bucket") is FAMILIES["queue_seconds"]
    assert family_of("queue_seconds_sum") is FAMILIES["queue_seconds"]
    assert family_of("requests_open_sum") is None
    assert family_of("steps") is None


def queries() -> list[tuple[str, str]]:
    """Title of the panel and query."""
    return [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]


def test_the_dashboard_has_a_row_for_each_kind_of_question():
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == ["Requests", "Latency", "Stages", "Edges", "Orchestrator"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.parametrize(("title", "query"), queries())
def test_every_metric_of_a_dashboard_query_exists_with_the_labels_it_is_grouped_by(title, query):
    names = re.findall(rf"{PREFIX}\w+", query)
    assert names
    families = [family_of_page(name) for name in names]
    labels = {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")} - {"le"}
    for family in families:
        assert labels <= set(family.labels), (title, family.name)
    for text in re.findall(r"\{\{(\w+)\}\}", query):
        assert text in labels


def family_of_page(name: str):
    by_page_name = {family.page_name: family for family in FAMILIES.values()}
    if name in by_page_name:
        return by_page_name[name]
    base, _, part = name.rpartition("_")
    assert part in ("bucket", "sum", "count"), f"there is no metric {name}"
    assert by_page_name[base].kind is Kind.HISTOGRAM
    return by_page_name[base]
