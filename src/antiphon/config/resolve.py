"""Resolution: the pipeline's defaults, the deploy file, then --set, into one DeployConfig that knows who set what.

In: a PipelineSpec, YAML text, `path=value` settings. Out: Deployment. All problems are reported at once.
Does not know: processes, sockets, models' code.
"""

import dataclasses
import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec
import yaml

from antiphon.config.deploy import DeployConfig, EdgeDeploy, StageDeploy
from antiphon.config.pipeline import WHOLE, ChunkPlan, EdgeRule, EdgeSpec, PipelineSpec, StageSpec
from antiphon.errors import ConfigError

Scalar = str | int | float | bool | None
_MINIMUM = {
    "replicas": 1,
    "threads": 0,
    "api_servers": 1,
    "arena_mib": 1,
    "max_inflight": 1,
    "max_queue": 0,
    "port": 0,
    "rows": 1,
    "first_rows": 1,
    "deadline_s": 0.001,
}


@dataclass(frozen=True)
class Setting:
    """One value that somebody set: dotted path, value, and who (the deploy file's name, or `--set`)."""

    path: str
    value: Scalar
    source: str


@dataclass(frozen=True)
class Deployment:
    """A pipeline with everything decided: what the launcher starts and `antiphon plan` shows."""

    reference: str
    pipeline: PipelineSpec
    config: DeployConfig
    settings: tuple[Setting, ...]

    def stage_spec(self, name: str) -> StageSpec:
        """The stage with the operator's batch limits."""
        spec, deploy = self.pipeline.stage(name), self.config.stages[name]
        return dataclasses.replace(
            spec,
            max_num_seqs=deploy.max_num_seqs or spec.max_num_seqs,
            max_batch_size=deploy.max_batch_size or spec.max_batch_size,
            threads=deploy.threads or spec.threads,
        )

    def chunk_plan(self, edge: EdgeSpec) -> ChunkPlan:
        """The edge's chunk plan with the operator's overrides."""
        deploy = self.config.edges[edge.name]
        if deploy.whole:
            return WHOLE
        plan = edge.chunk_plan
        return ChunkPlan(deploy.first_rows or plan.first_rows, deploy.rows or plan.rows)

    def in_edge_rules(self, stage: str) -> dict[str, EdgeRule]:
        """Edge name -> when `stage` may start on its input and how long to wait, for every edge that may enter it."""
        rules = {}
        for name, deploy in self.config.edges.items():
            if name.endswith(f"->{stage}"):
                edge = next((edge for edge in self.pipeline.edges if edge.name == name), None)
                default = edge.start_when if edge is not None else self.pipeline.stage(stage).entry_start_when
                rules[name] = EdgeRule(name, deploy.start_when or default, deploy.deadline_s)
        return rules


def resolve(
    reference: str, pipeline: PipelineSpec, *, deploy_file: str = "", settings: tuple[Setting, ...] = ()
) -> Deployment:
    """Merge and check; ConfigError lists every problem found."""
    pipeline.validate()
    problems: list[str] = []
    given = [*_read_file(deploy_file, problems), *settings]
    tree = _default_tree(pipeline)
    for setting in given:
        problem = _apply(tree, setting)
        if problem:
            problems.append(problem)
    config = _convert(tree, problems)
    if problems or config is None:
        raise ConfigError(problems)
    return Deployment(reference, pipeline, config, tuple(given))


def parse_settings(assignments: tuple[str, ...]) -> tuple[Setting, ...]:
    """`stages.talker.replicas=2` -> Setting; the value is read as YAML. ConfigError for what has no `=`."""
    wrong = [text for text in assignments if "=" not in text]
    if wrong:
        raise ConfigError([f"--set {text}: expected path=value, e.g. stages.talker.replicas=2" for text in wrong])
    pairs = [text.split("=", 1) for text in assignments]
    return tuple(Setting(path.strip(), _scalar(value), "--set") for path, value in pairs)


def _scalar(text: str) -> Scalar:
    value = yaml.safe_load(text)
    return value if isinstance(value, str | int | float | bool | None) else text


Tree = dict[str, "Tree | Scalar"]


def _default_tree(pipeline: PipelineSpec) -> Tree:
    """The defaults as nested dicts, with every stage and edge of the pipeline in place."""
    config = DeployConfig(
        pipeline=pipeline.name,
        stages={stage.name: StageDeploy() for stage in pipeline.stages},
        edges={edge.name: EdgeDeploy() for edge in pipeline.edges}
        | {f"client->{entry}": EdgeDeploy() for task in pipeline.tasks for entry in task.entries.values()},
    )
    return cast(Tree, dataclasses.asdict(config))


def _read_file(name: str, problems: list[str]) -> list[Setting]:
    if not name:
        return []
    try:
        loaded = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        problems.append(f"deploy file {name}: {' '.join(str(error).split())}")
        return []
    if loaded is None:
        return []
    if not isinstance(loaded, Mapping):
        problems.append(f"deploy file {name}: expected keys and values at the top, got {type(loaded).__name__}")
        return []
    return [Setting(path, value, os.path.basename(name)) for path, value in _flatten(loaded)]


def _flatten(tree: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, Scalar]]:
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{path}.")
        else:
            yield path, cast(Scalar, value)


def _apply(tree: Tree, setting: Setting) -> str:
    """Put one value in place; gives the problem, or "" if there is none."""
    node: Tree = tree
    *parents, last = setting.path.split(".")
    for depth, part in enumerate([*parents, last]):
        if part not in node:
            where = ".".join(setting.path.split(".")[:depth]) or "the top level"
            return f"{setting.source}: unknown key {setting.path!r}; at {where} there is {_nearest(part, node)}"
        child = node[part]
        if depth == len(parents):
            if isinstance(child, dict):
                return f"{setting.source}: {setting.path} is a group; set one of {', '.join(child)}"
            node[part] = setting.value
        elif isinstance(child, dict):
            node = child
        else:
            return f"{setting.source}: unknown key {setting.path!r}; {part} is a value, not a group"
    minimum = _MINIMUM.get(last)
    if minimum is not None and isinstance(setting.value, int | float) and setting.value < minimum:
        return f"{setting.source}: {setting.path}={setting.value} is below the least value, {minimum}"
    return ""


def _nearest(part: str, node: Tree) -> str:
    close = difflib.get_close_matches(part, node, n=1, cutoff=0.5)
    return f"{close[0]!r}" if close else f"one of {', '.join(node)}"


def _convert(tree: Tree, problems: list[str]) -> DeployConfig | None:
    """The typed config; a value of a wrong type is one problem per group it stands in."""
    try:
        return msgspec.convert(tree, DeployConfig, strict=True)
    except msgspec.ValidationError as error:
        problems.append(f"deploy config: {error}")
        return None
