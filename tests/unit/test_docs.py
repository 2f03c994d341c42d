"""The documentation against the code: deploy keys and their defaults, file names, functions, links, examples."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from antiphon.cli.main import COMMANDS
from antiphon.config.deploy import DeployConfig, EdgeDeploy, StageDeploy
from antiphon.config.resolve import resolve
from antiphon.models.registry import load_pipeline

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/antiphon"
DEPLOYING = (ROOT / "docs/deploying.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

Leaf = str | int | float | bool | None


def leaves(tree: dict[str, object], prefix: str = "") -> Iterator[tuple[str, Leaf]]:
    """Dotted path and value of everything that is not a group."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            assert value is None or isinstance(value, str | int | float | bool)
            yield f"{prefix}{key}", value


def fields_of_the_code() -> dict[str, Leaf]:
    config = DeployConfig(
        stages={"<stage>": StageDeploy(options={"<option>": "the pipeline's own"})}, edges={"<edge>": EdgeDeploy()}
    )
    return dict(leaves(dataclasses.asdict(config)))


def table_rows(text: str) -> list[list[str]]:
    """The cells of every table row, headings and rules included."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def documented_keys() -> dict[str, list[str]]:
    rows = [row for row in table_rows(DEPLOYING) if len(row) == 4 and row[0].startswith("`")]
    return {row[0].strip("`"): row[1:] for row in rows}


def test_every_deploy_key_is_documented_and_every_documented_key_exists():
    assert set(documented_keys()) == set(fields_of_the_code())


@pytest.mark.parametrize("key", [key for key in fields_of_the_code() if key != "pipeline"])
def test_the_documented_default_is_the_codes(key):
    *_, default = documented_keys()[key]
    assert yaml.safe_load(default.strip("`")) == fields_of_the_code()[key]


def test_every_deploy_key_has_a_meaning():
    assert all(len(meaning) > 10 for meaning, *_ in documented_keys().values())


def test_the_deploy_file_holds_every_key_of_the_voice_pipeline_at_its_default():
    pipeline = load_pipeline("voice")
    path = ROOT / "deploy/voice.yaml"
    written = dict(leaves(yaml.safe_load(path.read_text(encoding="utf-8"))))
    default = resolve("voice", pipeline).config
    assert written == dict(leaves(dataclasses.asdict(default)))
    assert resolve("voice", pipeline, deploy_file=str(path)).config == default


def test_the_example_in_deploying_is_a_valid_deploy_file(tmp_path):
    (example,) = re.findall(r"```yaml\n(.*?)```", DEPLOYING, re.DOTALL)
    path = tmp_path / "example.yaml"
    path.write_text(example, encoding="utf-8")
    deployment = resolve("voice", load_pipeline("voice"), deploy_file=str(path))
    assert deployment.config.stages["talker"].replicas == 2


def test_every_environment_variable_is_documented():
    read = set(re.findall(r"\"(ANTIPHON_\w+)\"", (SOURCE / "env.py").read_text(encoding="utf-8")))
    assert read
    assert read == set(re.findall(r"ANTIPHON_\w+", DEPLOYING))


def test_every_metric_that_deploying_names_is_made_somewhere():
    code = "".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    names = set(re.findall(r"antiphon_(\w+)", DEPLOYING))
    assert names
    bases = {name: name.removesuffix("_total") for name in names}
    assert not [name for name, base in bases.items() if f'"{name}"' not in code and f'{base}"' not in code]


def mentioned_files(text: str) -> set[str]:
    return set(re.findall(r"`([\w./]+\.(?:py|md|yaml))`", text))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_a_document_names_exists(document):
    text = document.read_text(encoding="utf-8")
    folders = (ROOT, SOURCE, document.parent)
    missing = [name for name in mentioned_files(text) if not any((folder / name).is_file() for folder in folders)]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_inside_the_repository_leads_somewhere(document):
    links = re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert not missing


def steps_of_a_request() -> list[tuple[str, str]]:
    """(file, symbol) of the numbered rows that say which function of which file does a step."""
    found = []
    for row in table_rows(ARCHITECTURE):
        if re.match(r"\d+\. ", row[0]) and len(row) == 3:
            (name,) = mentioned_files(row[1])
            found += [(name, symbol) for symbol in re.findall(r"`([A-Za-z_][\w.]*)`", row[2])]
    return found


def test_the_life_of_a_request_is_described_in_steps():
    assert len(steps_of_a_request()) > 15


@pytest.mark.parametrize(("name", "symbol"), steps_of_a_request())
def test_every_function_of_a_described_step_is_in_its_file(name, symbol):
    code = (SOURCE / name).read_text(encoding="utf-8")
    for part in symbol.split("."):
        assert re.search(rf"(?:class|def) {part}\b", code), f"{part} is not in {name}"


def test_the_read_me_names_every_command():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [name for name in COMMANDS if f"antiphon {name}" not in text]


def test_the_example_files_of_adding_a_model_are_quoted_as_they_are():
    examples = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs/examples").glob("*.py"))]
    guide = (ROOT / "docs/adding_a_model.md").read_text(encoding="utf-8")
    quoted = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert quoted
    for block in quoted:
        assert any(block in example for example in examples), block
