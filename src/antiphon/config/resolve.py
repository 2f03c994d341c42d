"""Resolution: the pipeline's defaults, the deploy file, then --set, into one DeployConfig that knows who set what.

In: a PipelineSpec, YAML text, `path=value` settings. Out: Deployment. All problems are reported at once.
Does not know: processes, sockets, models' code.
"""

import dataclasses
import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec
import yaml

from antiphon.config.deploy import ConnectorKind, DeployConfig, EdgeDeploy, StageDeploy
from antiphon.config.pipeline import (
    CLIENT,
    WHOLE,
    ChunkPlan,
    EdgeRule,
    EdgeSpec,
    EngineKind,
    PipelineSpec,
    StageSpec,
    StartWhen,
)
from antiphon.config.pipeline_check import check_pipeline
from antiphon.errors import ConfigError
from antiphon.ids import edge_name

Scalar = str | int | float | bool | None
Tree = dict[str, "Tree | Scalar"]
_ENUMS = {"start_when": StartWhen, "kind": ConnectorKind, "engine": EngineKind}
_PATTERNS = {
    "device": "expected cpu, cuda, npu or xpu, and which one if there are several: cuda:1",
    "cors_origins": "expected origins, separated by commas, without a path: https://voice.example:8443, or *",
    "allowed_hosts": "expected names without a port, separated by commas: voice.example, or *",
    "trusted_proxies": "expected addresses or networks, separated by commas: 127.0.0.1, 10.0.0.0/8",
}
_MAX_DEPTH = 8  # far deeper than any key: what is nested without end is not followed


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
        """The stage with the operator's engine and limits."""
        spec, deploy = self.pipeline.stage(name), self.config.stages[name]
        engine = deploy.engine or spec.engine
        return dataclasses.replace(
            spec,
            engine=engine,
            model=spec.alternatives.get(engine, spec.model),
            max_num_seqs=deploy.max_num_seqs or spec.max_num_seqs,
            max_batch_size=deploy.max_batch_size or spec.max_batch_size,
            threads=deploy.threads or spec.threads,
            max_num_batched_tokens=deploy.max_num_batched_tokens or spec.max_num_batched_tokens,
            num_kv_blocks=deploy.num_kv_blocks or spec.num_kv_blocks,
        )

    def chunk_plan(self, edge: EdgeSpec) -> ChunkPlan:
        """The edge's chunk plan with the operator's overrides; for an edge that is WHOLE, one of the two sets both."""
        deploy = self.config.edges[edge.name]
        if deploy.whole:
            return WHOLE
        plan = edge.chunk_plan
        first_rows = deploy.first_rows or plan.first_rows or deploy.rows
        return ChunkPlan(first_rows, deploy.rows or plan.rows or deploy.first_rows)

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
    check_pipeline(pipeline)
    problems: list[str] = []
    tree = _default_tree(pipeline)
    given = [*_read_file(deploy_file, problems), *settings]
    given = [setting for setting in given if not _is_empty_group(tree, setting)]
    config = _convert(pipeline, tree, given, problems)
    if config.pipeline not in (pipeline.name, reference):
        raise ConfigError([f"these settings are for pipeline {config.pipeline!r}, and this is {pipeline.name!r}"])
    return Deployment(reference, pipeline, config, tuple(given))


def change(deployment: Deployment, settings: tuple[Setting, ...]) -> Deployment:
    """The deployment with more settings; ConfigError lists every problem found."""
    tree = cast(Tree, dataclasses.asdict(deployment.config))
    config = _convert(deployment.pipeline, tree, settings, [])
    return dataclasses.replace(deployment, config=config, settings=(*deployment.settings, *settings))


def _convert(pipeline: PipelineSpec, tree: Tree, given: Sequence[Setting], problems: list[str]) -> DeployConfig:
    """Put the settings into the tree, in order, and make it a config; ConfigError with `problems` and its own."""
    for setting in given:
        problem = _apply(tree, setting) or _type_problem(setting)
        if problem:
            problems.append(problem)
    if problems:
        raise ConfigError(problems)
    config = msgspec.convert(tree, DeployConfig, strict=True)
    problems += [problem for setting in given if (problem := _engine_problem(pipeline, setting))]
    problems += [problem for setting in given if (problem := _option_problem(pipeline, setting))]
    if not problems:
        problems += [problem for setting in given if (problem := _device_problem(pipeline, config, setting))]
    if problems:
        raise ConfigError(problems)
    return config


def _engine_problem(pipeline: PipelineSpec, setting: Setting) -> str:
    """A stage that is to run on an engine it does not offer; "" if that is not so."""
    group, _, field_name = setting.path.rpartition(".")
    if field_name != "engine" or setting.value is None:
        return ""
    stage = pipeline.stage(group.removeprefix("stages."))
    offered = (stage.engine, *stage.alternatives)
    if setting.value in offered:
        return ""
    return f"{setting.source}: {setting.path}={setting.value}: this stage offers {', '.join(offered)}"


def _device_problem(pipeline: PipelineSpec, config: DeployConfig, setting: Setting) -> str:
    """A device for a stage that would not work on it; "" if that is not so."""
    match setting.path.split("."):
        case ["stages", name, "device"] if setting.value != StageDeploy().device:
            stage = pipeline.stage(name)
            engine = config.stages[name].engine or stage.engine
            if stage.devices_are_taken_by(engine):
                return ""
            others = [each for each in stage.alternatives if each != engine and stage.devices_are_taken_by(each)]
            hint = f"; its engine {others[0]} would take it (stages.{name}.engine)" if others else "; leave it out"
            return f"{setting.source}: {setting.path}={setting.value}: stage {name} does not choose its device{hint}"
        case _:
            return ""


def _option_problem(pipeline: PipelineSpec, setting: Setting) -> str:
    """A value that the option's declaration does not allow; "" if that is not so."""
    match setting.path.split("."):
        case ["stages", stage, "options", name]:
            option = next(option for option in pipeline.stage(stage).options if option.name == name)
            problem = option.problem(setting.value)
            return problem and f"{setting.source}: {setting.path}={setting.value!r}: {problem}"
        case _:
            return ""


def parse_settings(assignments: tuple[str, ...]) -> tuple[Setting, ...]:
    """`stages.talker.replicas=2` -> Setting; the value is read as YAML. ConfigError lists all that are none."""
    problems: list[str] = []
    settings: list[Setting] = []
    for text in assignments:
        path, equals, value = text.partition("=")
        if not equals:
            problems.append(f"--set {text}: expected path=value, e.g. stages.talker.replicas=2")
            continue
        try:
            loaded = _load_yaml(value)
        except yaml.YAMLError as error:
            problems.append(f"--set {text}: {_one_line(error)}")
            continue
        scalar = loaded if isinstance(loaded, Scalar) else value
        settings.append(Setting(path.strip(), scalar, "--set"))
    if problems:
        raise ConfigError(problems)
    return tuple(settings)


def _default_tree(pipeline: PipelineSpec) -> Tree:
    """The defaults as nested dicts, with every stage and edge of the pipeline in place."""
    config = DeployConfig(
        pipeline=pipeline.name,
        stages={
            stage.name: StageDeploy(options={option.name: option.default for option in stage.options})
            for stage in pipeline.stages
        },
        edges={edge.name: EdgeDeploy() for edge in pipeline.edges}
        | {edge_name(CLIENT, entry): EdgeDeploy() for task in pipeline.tasks for entry in task.entries.values()},
    )
    return cast(Tree, dataclasses.asdict(config))


def _load_yaml(text: str) -> object:
    """yaml.safe_load; where PyYAML fails in its own way (a 13th month, `!!timestamp x`, too deep), a YAMLError too."""
    try:
        return yaml.safe_load(text)
    except (ValueError, AttributeError, RecursionError) as error:
        raise yaml.YAMLError(f"a value cannot be read ({error}); quote it if it is text") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _read_file(name: str, problems: list[str]) -> list[Setting]:
    if not name:
        return []
    try:
        loaded = _load_yaml(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        problems.append(f"deploy file {name}: {_one_line(error)}")
        return []
    if loaded is None:
        return []
    if not isinstance(loaded, Mapping):
        problems.append(f"deploy file {name}: expected keys and values at the top, got {type(loaded).__name__}")
        return []
    source = os.path.basename(name)
    settings = []
    for path, value in _flatten(loaded):
        if isinstance(value, Scalar):
            settings.append(Setting(path, value, source))
        else:
            problems.append(f"{source}: {path} takes one value, not a {type(value).__name__}; quote it if it is text")
    return settings


def _flatten(tree: Mapping[object, object], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    """Dotted path -> value. An empty group is None, as it is when YAML has nothing under its key."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and not value:
            yield path, None
        elif isinstance(value, Mapping) and depth < _MAX_DEPTH:
            yield from _flatten(value, f"{path}.", depth + 1)
        else:
            yield path, value


def _is_empty_group(tree: Tree, setting: Setting) -> bool:
    """True for `stages:` with nothing under it: it sets nothing."""
    node: Tree | Scalar = tree
    for part in setting.path.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return isinstance(node, dict) and setting.value is None


def _apply(tree: Tree, setting: Setting) -> str:
    """Put one value in place; gives the problem, or "" if there is none."""
    node: Tree = tree
    *parents, last = setting.path.split(".")
    for depth, part in enumerate([*parents, last]):
        if part not in node:
            where = ".".join(parents[:depth]) or "the top level"
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
    return ""


def _nearest(part: str, node: Tree) -> str:
    close = difflib.get_close_matches(part, node, n=1, cutoff=0.5)
    return f"{close[0]!r}" if close else f"one of {', '.join(node)}" if node else "nothing"


def _type_problem(setting: Setting) -> str:
    """The value of a known key against its field's type and range, whatever the other settings are."""
    where = f"{setting.source}: {setting.path}={setting.value!r}"
    if isinstance(setting.value, str) and not setting.value.isprintable():
        return f"{where}: has characters that cannot be printed"
    *parents, last = setting.path.split(".")
    tree: Tree = {last: setting.value}
    for part in reversed(parents):
        tree = {part: tree}
    try:
        msgspec.convert(tree, DeployConfig, strict=True)
    except msgspec.ValidationError as error:
        wanted = str(error).partition(" - at ")[0]
        if last in _PATTERNS and isinstance(setting.value, str):
            wanted = _PATTERNS[last]
        if last in _ENUMS:
            wanted = f"expected one of {', '.join(_ENUMS[last])}"
        return f"{where}: {wanted}"
    return ""
