"""PipelineSpec: all faults at once, and the part of `voice` that each request crosses."""

import dataclasses
import itertools

import pytest

from antiphon.config.pipeline import (
    ChunkPlan,
    ClientKind,
    EdgeSpec,
    EngineKind,
    Lane,
    Modality,
    OutputSpec,
    PipelineSpec,
    Policy,
    Route,
    StageSpec,
    TaskSpec,
)
from antiphon.config.pipeline_check import check_pipeline
from antiphon.errors import ConfigError, UnsupportedModalityError
from antiphon.models.voice.pipeline import PIPELINE as VOICE

TEXT, AUDIO = Modality.TEXT, Modality.AUDIO
HIDDEN = OutputSpec("hidden", Lane.HANDOFF, "float32", (4,))
PCM = OutputSpec("pcm", Lane.CLIENT, "int16", client=ClientKind.AUDIO)
SOUND = TaskSpec("speech", {TEXT: "first"}, {AUDIO: "second"})


def stage(name: str, *outputs: OutputSpec) -> StageSpec:
    return StageSpec(name, EngineKind.GENERATION, "nowhere:Model", outputs)


SOUNDING = PipelineSpec(
    name="sounding",
    stages=(stage("first", HIDDEN), stage("second", PCM)),
    edges=(EdgeSpec("first", "second", ("hidden",)),),
    tasks=(SOUND,),
    frontend="nowhere:Frontend",
)


def problems_of(pipeline: PipelineSpec) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as raised:
        check_pipeline(pipeline)
    return raised.value.problems


def route(task: str, inputs: set[Modality], outputs: set[Modality]) -> Route:
    return VOICE.route(task, frozenset(inputs), frozenset(outputs))


def test_a_sound_pipeline_has_no_problems() -> None:
    check_pipeline(SOUNDING)
    check_pipeline(VOICE)


def test_every_fault_is_reported_at_once() -> None:
    faulty = PipelineSpec(
        name="faulty",
        stages=(
            stage("Talker", OutputSpec("a", Lane.HANDOFF, "float31"), OutputSpec("a", Lane.CLIENT, "int16")),
            stage("mute", OutputSpec("b", Lane.HANDOFF, "int16", policy=Policy.REPLACE)),
            stage("mute"),
        ),
        edges=(
            EdgeSpec("mute", "Talker", ("b", "missing")),
            EdgeSpec("mute", "nobody", ("b",)),
        ),
        tasks=(
            TaskSpec("speech", {TEXT: "Talker"}, {AUDIO: "mute"}),
            TaskSpec("chat", {TEXT: "ghost"}, {TEXT: "phantom"}),
        ),
        frontend="nowhere:Frontend",
    )
    problems = problems_of(faulty)
    expected = (
        "stage 'mute' is declared twice",
        "stage 'Talker': a name is lower-case",
        "stage Talker, output 'a' is declared twice",
        "unknown dtype 'float31'; one of uint8,",
        "stage Talker, output 'a': `client` must be given",
        "stage mute, output 'b': rows cannot be replaced",
        "edge mute->Talker: list mute before Talker",
        "mute does not declare 'missing' for the hand-off lane",
        "edge mute->nobody: there is no stage 'nobody'",
        "task speech: no edges lead from Talker to mute",
        "task speech: mute gives audio but declares no such output",
        "task chat: there is no stage 'ghost'",
        "task chat: there is no stage 'phantom'",
    )
    for text in expected:
        assert sum(text in problem for problem in problems) == 1, (text, problems)
    assert len(problems) == len(expected)
    assert all(problem.startswith("pipeline faulty: ") for problem in problems)


@pytest.mark.parametrize("kind", [ClientKind.TEXT, ClientKind.IMAGE])
def test_a_final_stage_must_declare_the_modality_that_its_task_gives(kind: ClientKind) -> None:
    wrong = dataclasses.replace(PCM, client=kind)
    pipeline = dataclasses.replace(SOUNDING, stages=(stage("first", HIDDEN), stage("second", wrong)))
    assert problems_of(pipeline) == (
        "pipeline sounding: task speech: second gives audio but declares no such output on the client lane",
    )


@pytest.mark.parametrize("plan", [ChunkPlan(0, 4), ChunkPlan(4, -1)])
def test_a_chunk_of_no_rows_is_a_problem(plan: ChunkPlan) -> None:
    pipeline = dataclasses.replace(SOUNDING, edges=(EdgeSpec("first", "second", ("hidden",), plan),))
    (problem,) = problems_of(pipeline)
    assert "edge first->second: a chunk has at least 1 row" in problem


@pytest.mark.parametrize(
    "lame",
    [
        dataclasses.replace(stage("first", HIDDEN), max_num_seqs=0),
        dataclasses.replace(stage("first", HIDDEN), max_batch_size=0),
        dataclasses.replace(stage("first", HIDDEN), threads=0),
    ],
)
def test_a_stage_that_may_do_nothing_is_a_problem(lame: StageSpec) -> None:
    (problem,) = problems_of(dataclasses.replace(SOUNDING, stages=(lame, stage("second", PCM))))
    assert "stage first: max_num_seqs, max_batch_size and threads are at least 1" in problem


def test_the_name_of_the_client_is_no_stage_name() -> None:
    pipeline = PipelineSpec("p", (stage("client", PCM),), (), (TaskSpec("t", {TEXT: "client"}, {AUDIO: "client"}),), "")
    (problem,) = problems_of(pipeline)
    assert "stage 'client'" in problem


def test_tasks_declared_twice_or_without_ends_are_problems() -> None:
    empty = TaskSpec("empty", {}, {})
    problems = problems_of(dataclasses.replace(SOUNDING, tasks=(SOUND, SOUND, empty)))
    assert problems == (
        "pipeline sounding: task 'speech' is declared twice",
        "pipeline sounding: task empty: name at least one entry and one final stage",
    )


@pytest.mark.parametrize(
    ("task", "inputs", "outputs", "stages", "finals"),
    [
        ("chat", {TEXT}, {TEXT}, ("thinker",), ("thinker",)),
        ("chat", {TEXT}, {TEXT, AUDIO}, ("thinker", "talker", "code2wav"), ("thinker", "code2wav")),
        ("chat", {TEXT}, {AUDIO}, ("thinker", "talker", "code2wav"), ("code2wav",)),
        ("chat", {AUDIO}, {TEXT}, ("listener", "thinker"), ("thinker",)),
        ("chat", {TEXT, AUDIO}, {TEXT}, ("listener", "thinker"), ("thinker",)),
        (
            "chat",
            {TEXT, AUDIO},
            {TEXT, AUDIO},
            ("listener", "thinker", "talker", "code2wav"),
            ("thinker", "code2wav"),
        ),
        ("speech", {TEXT}, {AUDIO}, ("talker", "code2wav"), ("code2wav",)),
        ("transcription", {AUDIO}, {TEXT}, ("listener",), ("listener",)),
    ],
)
def test_a_request_crosses_the_stages_between_its_entry_and_its_finals(
    task: str, inputs: set[Modality], outputs: set[Modality], stages: tuple[str, ...], finals: tuple[str, ...]
) -> None:
    found = route(task, inputs, outputs)
    assert found.stages == stages
    assert found.entry == stages[0]
    assert found.finals == finals
    assert [(edge.producer, edge.consumer) for edge in found.edges] == list(itertools.pairwise(stages))


@pytest.mark.parametrize(
    ("task", "inputs", "outputs", "named"),
    [
        ("speech", {AUDIO}, {AUDIO}, "not audio"),
        ("speech", {TEXT}, {TEXT}, "not text"),
        ("transcription", {TEXT}, {TEXT}, "not text"),
        ("transcription", {AUDIO}, {AUDIO}, "not audio"),
        ("chat", {TEXT}, {Modality.IMAGE}, "not image"),
        ("chat", {Modality.IMAGE, TEXT}, {TEXT}, "not image"),
        ("chat", {TEXT}, set(), "not nothing"),
        ("chat", set(), {TEXT}, "not nothing"),
    ],
)
def test_modalities_that_a_task_does_not_have_are_refused(
    task: str, inputs: set[Modality], outputs: set[Modality], named: str
) -> None:
    with pytest.raises(UnsupportedModalityError, match=named) as raised:
        route(task, inputs, outputs)
    assert raised.value.param == "modalities"
    assert f"task {task} takes" in raised.value.message


def test_an_unknown_task_names_those_there_are() -> None:
    with pytest.raises(UnsupportedModalityError, match="no task 'image'; it has chat, speech, transcription"):
        route("image", {TEXT}, {Modality.IMAGE})
