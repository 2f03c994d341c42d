"""A simulated pipeline's timing, from the profile it is made of and the operator's settings.

In: a Deployment, a task. Out: its PipelineTiming. Does not know: arrivals, how the ideal is computed.
"""

from pathlib import Path

from antiphon.bench.ideal.timing import EdgeTiming, PipelineTiming, StageKind, StageTiming
from antiphon.config.pipeline import EdgeSpec, Modality
from antiphon.config.resolve import Deployment
from antiphon.errors import ConfigError
from antiphon.models.simulated.profile import Profile, StageProfile, load_profile

_PROFILE = "profile"


def has_timing(deployment: Deployment) -> bool:
    """True for a pipeline that is made of a profile."""
    return all(_PROFILE in stage.arguments for stage in deployment.pipeline.stages)


def timing_of(deployment: Deployment, outputs: frozenset[Modality], task: str) -> PipelineTiming:
    """The stages that a request of `task` for `outputs` crosses; ConfigError for a pipeline without a profile."""
    pipeline = deployment.pipeline
    if not has_timing(deployment):
        raise ConfigError(
            [f"{pipeline.name} has no simulated times; the ideal is known of sim-qwen3-omni and its like"]
        )
    profile = load_profile(Path(str(pipeline.stages[0].arguments[_PROFILE])))
    route = pipeline.route(task, frozenset({Modality.TEXT}), outputs)
    finals = pipeline.task(task).finals
    return PipelineTiming(
        stages=tuple(_stage(deployment, profile, name) for name in route.stages),
        edges=tuple(_edge(deployment, profile, edge) for edge in route.edges),
        text_stage=finals[Modality.TEXT] if Modality.TEXT in outputs else "",
        audio_stage=finals[Modality.AUDIO] if Modality.AUDIO in outputs else "",
    )


def _stage(deployment: Deployment, profile: Profile, name: str) -> StageTiming:
    deploy, spec = deployment.config.stages[name], deployment.stage_spec(name)
    stage: StageProfile = profile.stages[name].with_options(deploy.options)
    sequences, generator, step = stage.sequences, stage.generator, stage.step
    return StageTiming(
        name=name,
        kind=StageKind.SEQUENCES if sequences is not None else StageKind.GENERATOR,
        base_s=step.base_ms / 1000,
        per_sequence_s=step.per_sequence_ms / 1000,
        per_token_s=step.per_token_ms / 1000,
        max_num_seqs=spec.max_num_seqs,
        max_num_batched_tokens=spec.max_num_batched_tokens,
        max_batch_size=spec.max_batch_size,
        rows_per_step=generator.rows_per_step if generator is not None else None,
        left_context_rows=generator.left_context_rows if generator is not None else 0,
        outputs_per_input=sequences.per_word if sequences is not None and not sequences.natural_tokens else 0.0,
        row_s=generator.samples_per_row / profile.sample_rate if generator is not None else 0.0,
        replicas=deploy.replicas,
    )


def _edge(deployment: Deployment, profile: Profile, edge: EdgeSpec) -> EdgeTiming:
    hand_off, plan = profile.stages[edge.producer].hands_off, deployment.chunk_plan(edge)
    return EdgeTiming(
        edge.producer,
        edge.consumer,
        plan.first_rows,
        plan.rows,
        of_positions=hand_off is not None and hand_off.rows_of == "positions",
        all_chunks=plan.is_whole,
    )
