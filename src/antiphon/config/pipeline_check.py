"""Whether what a model author wrote fits together.

In: a PipelineSpec. Out: nothing, or a ConfigError that lists every problem.
Does not know: what an operator sets, whether the named classes exist.
"""

import re

from antiphon.config.pipeline import CLIENT, ClientKind, EdgeSpec, Lane, Modality, PipelineSpec, StageSpec, TaskSpec
from antiphon.errors import ConfigError

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_KINDS_OF = {
    Modality.TEXT: frozenset({ClientKind.TEXT, ClientKind.TOKENS}),
    Modality.AUDIO: frozenset({ClientKind.AUDIO}),
    Modality.IMAGE: frozenset({ClientKind.IMAGE}),
    Modality.VIDEO: frozenset(),  # an input only
}


def check_pipeline(pipeline: PipelineSpec) -> None:
    """Raise ConfigError with every problem of the pipeline at once."""
    problems = _duplicates("stage", [stage.name for stage in pipeline.stages])
    for stage in pipeline.stages:
        problems += _stage_problems(stage)
    problems += _duplicates("edge", [edge.name for edge in pipeline.edges])
    for edge in pipeline.edges:
        problems += _edge_problems(pipeline, edge)
    problems += _duplicates("task", [task.name for task in pipeline.tasks])
    for task in pipeline.tasks:
        problems += _task_problems(pipeline, task)
    if problems:
        raise ConfigError([f"pipeline {pipeline.name}: {problem}" for problem in problems])


def _stage_problems(stage: StageSpec) -> list[str]:
    problems = []
    if not _NAME.fullmatch(stage.name) or stage.name == CLIENT:
        problems.append(f"stage {stage.name!r}: a name is lower-case letters, digits and _, and not {CLIENT!r}")
    if min(stage.max_num_seqs, stage.max_batch_size, stage.threads) < 1:
        problems.append(f"stage {stage.name}: max_num_seqs, max_batch_size and threads are at least 1")
    problems += _duplicates(f"stage {stage.name}, output", [output.key for output in stage.outputs])
    problems += _duplicates(f"stage {stage.name}, option", [option.name for option in stage.options])
    problems += [
        f"stage {stage.name}, option {option.name!r}: {problem}"
        for option in stage.options
        if (problem := option.problem(option.default))
    ]
    for output in stage.outputs:
        problems += output.problems(stage.name)
    return problems


def _edge_problems(pipeline: PipelineSpec, edge: EdgeSpec) -> list[str]:
    order = [stage.name for stage in pipeline.stages]
    missing = [name for name in (edge.producer, edge.consumer) if name not in order]
    if missing:
        return [f"edge {edge.name}: there is no stage {name!r}" for name in missing]
    problems = []
    if any(rows is not None and rows < 1 for rows in (edge.chunk_plan.first_rows, edge.chunk_plan.rows)):
        problems.append(f"edge {edge.name}: a chunk has at least 1 row; use WHOLE for one chunk at the end")
    if order.index(edge.producer) >= order.index(edge.consumer):
        problems.append(f"edge {edge.name}: list {edge.producer} before {edge.consumer}; edges go forward")
    for key in edge.keys:
        output = pipeline.stage(edge.producer).output(key)
        if output is None or output.lane is Lane.CLIENT:
            problems.append(f"edge {edge.name}: {edge.producer} does not declare {key!r} for the hand-off lane")
    return problems


def _task_problems(pipeline: PipelineSpec, task: TaskSpec) -> list[str]:
    names = {stage.name for stage in pipeline.stages}
    used = [*task.entries.values(), *task.finals.values()]
    problems = [f"task {task.name}: there is no stage {name!r}" for name in used if name not in names]
    if not task.entries or not task.finals:
        problems.append(f"task {task.name}: name at least one entry and one final stage")
    if problems:
        return problems
    for entry in task.entries.values():
        reached = pipeline.downstream(entry)
        problems += [
            f"task {task.name}: no edges lead from {entry} to {final}"
            for final in task.finals.values()
            if final not in reached
        ]
    problems += [
        f"task {task.name}: {final} gives {modality} but declares no such output on the client lane"
        for modality, final in task.finals.items()
        if not pipeline.stage(final).client_kinds & _KINDS_OF[modality]
    ]
    return problems


def _duplicates(what: str, names: list[str]) -> list[str]:
    return [f"{what} {name!r} is declared twice" for name in sorted({n for n in names if names.count(n) > 1})]
