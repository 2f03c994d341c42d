"""A profile as a pipeline: the one builder of the simulated pipelines' specs.

In: a profile's path. Out: a PipelineSpec. Does not know: arrays, time. Importing this module imports no model.
"""

from pathlib import Path

from antiphon.config.pipeline import (
    WHOLE,
    ChunkPlan,
    ClientKind,
    EdgeSpec,
    EngineKind,
    Lane,
    Layout,
    Modality,
    OptionSpec,
    OutputSpec,
    PipelineSpec,
    Policy,
    StageSpec,
    StartWhen,
    TaskSpec,
)
from antiphon.config.pipeline_check import check_pipeline
from antiphon.models.simulated.profile import Generator, HandOff, Profile, StageProfile, array_of, load_profile

CHECKS = ("sum", "header", "full")
"""How much of each row a consumer compares; the first is the default. See row_values.Check."""
_LANES = ("next", "both")
_WORDS = {"hidden_states_lane": _LANES}


def build(path: Path) -> PipelineSpec:
    """The pipeline of the profile at `path`; ConfigError if there is something wrong with it."""
    profile = load_profile(path)
    entry = next(iter(profile.stages))
    spec = PipelineSpec(
        name=profile.name,
        stages=tuple(_stage(profile, name, str(path)) for name in profile.stages),
        edges=tuple(_edge(name, each.hands_off) for name, each in profile.stages.items() if each.hands_off),
        tasks=tuple(
            TaskSpec(name, {Modality.TEXT: entry}, {Modality(modality): stage for modality, stage in finals.items()})
            for name, finals in profile.tasks.items()
        ),
        frontend="antiphon.models.simulated.profile_frontend:ProfileFrontend",
        sample_rate=profile.sample_rate,
    )
    check_pipeline(spec)
    return spec


def _stage(profile: Profile, name: str, path: str) -> StageSpec:
    stage = profile.stages[name]
    sequences, generator = stage.sequences, stage.generator
    kind, module = (
        (EngineKind.SIMULATED, "sequences:SimulatedSequences")
        if sequences is not None
        else (EngineKind.GENERATION, "generator:SimulatedGenerator")
    )
    return StageSpec(
        name=name,
        engine=kind,
        model=f"antiphon.models.simulated.{module}",
        outputs=(*_handed_off(stage.hands_off), *_for_client(stage)),
        max_num_seqs=stage.max_num_seqs,
        max_batch_size=generator.max_batch_size if generator is not None else 1,
        max_num_batched_tokens=sequences.max_num_batched_tokens if sequences is not None else 1,
        num_kv_blocks=sequences.num_kv_blocks if sequences is not None else 1,
        entry_start_when=StartWhen.ALL_CHUNKS,
        arguments={"profile": path, "stage": name},
        options=_options(profile, name),
    )


def _options(profile: Profile, name: str) -> tuple[OptionSpec, ...]:
    values = profile.stages[name].options()
    given = [OptionSpec(option, value, choices=_WORDS.get(option, ())) for option, value in values.items()]
    given.append(OptionSpec("seed", profile.seed))
    if profile.producer_of(name):
        given.append(OptionSpec("check", CHECKS[0], choices=CHECKS))
    return tuple(given)


def _handed_off(hand_off: HandOff | None) -> list[OutputSpec]:
    if hand_off is None:
        return []
    lane, client = (Lane.BOTH, ClientKind.RAW) if hand_off.hidden_states_lane else (Lane.HANDOFF, None)
    rows = [OutputSpec(key, lane, *array_of(text), client=client) for key, text in hand_off.per_row.items()]
    return rows + [_once(key, *array_of(text)) for key, text in hand_off.once.items()]


def _once(key: str, dtype: str, shape: tuple[int, ...]) -> OutputSpec:
    return OutputSpec(key, Lane.HANDOFF, dtype, shape[1:], layout=Layout.WHOLE, policy=Policy.REPLACE)


def _for_client(stage: StageProfile) -> list[OutputSpec]:
    if stage.sequences is not None:
        return [OutputSpec("text", Lane.CLIENT, "uint8", client=ClientKind.TEXT)] if stage.sequences.says_text else []
    if stage.generator is not None and stage.hands_off is None:
        return [_product(stage.generator)]
    return []


def _product(generator: Generator) -> OutputSpec:
    if generator.samples_per_row:
        return OutputSpec("pcm", Lane.CLIENT, "int16", client=ClientKind.AUDIO)
    return OutputSpec("pixels", Lane.CLIENT, "uint8", (None, 3), client=ClientKind.IMAGE)


def _edge(producer: str, hand_off: HandOff) -> EdgeSpec:
    keys = (*hand_off.per_row, *hand_off.once)
    if hand_off.first_rows is None or hand_off.rows is None:
        return EdgeSpec(producer, hand_off.to, keys, WHOLE, StartWhen.ALL_CHUNKS)
    return EdgeSpec(producer, hand_off.to, keys, ChunkPlan(hand_off.first_rows, hand_off.rows))
