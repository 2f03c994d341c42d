"""resolve: the pipeline's defaults, the deploy file, then --set; every problem at once, and no other error."""

import dataclasses
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.config.pipeline import WHOLE, ChunkPlan, StartWhen
from antiphon.config.resolve import Deployment, Setting, change, parse_settings, resolve
from antiphon.errors import ConfigError
from antiphon.models.voice.pipeline import PIPELINE as VOICE

TO_THINKER, TO_TALKER, TO_CODE2WAV = VOICE.edges


def deploy(*assignments: str, file: Path | None = None) -> Deployment:
    return resolve("voice", VOICE, deploy_file=str(file or ""), settings=parse_settings(assignments))


def problems_of(*assignments: str, file: Path | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as raised:
        deploy(*assignments, file=file)
    return raised.value.problems


@pytest.fixture
def deploy_file(tmp_path: Path) -> Path:
    return tmp_path / "deploy.yaml"


def test_with_nothing_set_the_pipeline_decides() -> None:
    deployment = deploy()
    assert deployment.settings == ()
    assert set(deployment.config.stages) == {"listener", "thinker", "talker", "code2wav"}
    assert set(deployment.config.edges) == {
        *(edge.name for edge in VOICE.edges),
        "client->thinker",
        "client->listener",
        "client->talker",
    }
    assert deployment.stage_spec("thinker") == VOICE.stage("thinker")
    assert deployment.chunk_plan(TO_CODE2WAV) == ChunkPlan(16, 64)


def test_a_setting_wins_over_the_file_and_both_are_remembered(deploy_file: Path) -> None:
    deploy_file.write_text("server: {port: 9000, host: 0.0.0.0}\nstages:\n  talker:\n    replicas: 3\n")
    deployment = deploy("server.port=9001", file=deploy_file)
    assert deployment.config.server.port == 9001
    assert deployment.config.server.host == "0.0.0.0"
    assert deployment.config.stages["talker"].replicas == 3
    assert deployment.config.stages["code2wav"].replicas == 1
    assert deployment.settings == (
        Setting("server.port", 9000, "deploy.yaml"),
        Setting("server.host", "0.0.0.0", "deploy.yaml"),
        Setting("stages.talker.replicas", 3, "deploy.yaml"),
        Setting("server.port", 9001, "--set"),
    )


def test_of_two_settings_the_later_wins() -> None:
    assert deploy("server.port=1", "server.port=2").config.server.port == 2


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [
        ("stages.talker.replica=2", "unknown key 'stages.talker.replica'; at stages.talker there is 'replicas'"),
        ("stages.taker.replicas=2", "unknown key 'stages.taker.replicas'; at stages there is 'talker'"),
        ("sever.port=2", "unknown key 'sever.port'; at the top level there is 'server'"),
        ("edges.thinker->taker.rows=2", "at edges there is 'thinker->talker'"),
        ("connector.zzz=2", "at connector there is one of kind, arena_mib"),
        ("stages.talker=2", "stages.talker is a group; set one of replicas, device"),
        ("server.port.number=2", "unknown key 'server.port.number'; port is a value, not a group"),
        ("server.port=many", "server.port='many': Expected `int`, got `str`"),
        ("server.port=1.5", "server.port=1.5: Expected `int`, got `float`"),
        ("stages.talker.replicas=yes", "stages.talker.replicas=True: Expected `int`, got `bool`"),
        ("server.host=1", "server.host=1: Expected `str`, got `int`"),
        ("server.host=", "server.host=None: Expected `str`, got `null`"),
        ("edges.thinker->talker.whole=1", "edges.thinker->talker.whole=1: Expected `bool`, got `int`"),
        (
            "edges.thinker->talker.start_when=soon",
            "edges.thinker->talker.start_when='soon': expected one of first_chunk, all_chunks",
        ),
        ("server.cors_origins=voice.example", "expected origins, separated by commas, without a path: https://"),
        ("server.cors_origins=https://voice.example/page", "expected origins"),
        ("server.cors_origins=https://a.example https://b.example", "expected origins"),
        ("server.allowed_hosts=https://voice.example", "expected names without a port, separated by commas: voice"),
        ("server.allowed_hosts=voice.example:8000", "expected names without a port"),
        ("server.trusted_proxies=proxy.example", "expected addresses or networks, separated by commas: 127.0.0.1"),
        ("connector.kind=carrier_pigeon", "connector.kind='carrier_pigeon': expected one of shm"),
        ("stages.thinker.engine=magic", "expected one of generation, autoregressive, llama_cpp"),
        ("stages.talker.engine=llama_cpp", "stages.talker.engine=llama_cpp: this stage offers generation"),
        ('server.host="\\ud800"', "has characters that cannot be printed"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_right(assignment: str, problem: str) -> None:
    (found,) = problems_of(assignment)
    assert found.startswith("--set: ")
    assert problem in found


@pytest.mark.parametrize(
    "assignment",
    [
        "server.port=-1",
        "server.port=65536",
        "server.api_servers=0",
        "server.max_body_mib=0",
        "server.max_audio_s=0",
        "server.max_text_chars=0",
        "server.output_deadline_s=0",
        "server.output_deadline_s=.nan",
        "server.output_deadline_s=.inf",
        "server.max_client_backlog_mib=0",
        "admission.max_inflight=0",
        "admission.max_queue=-1",
        "connector.arena_mib=0",
        "connector.arena_mib=100000000000000000000",
        "stages.talker.replicas=0",
        "stages.talker.threads=-1",
        "stages.talker.max_num_seqs=-1",
        "stages.talker.max_batch_size=-1",
        "edges.thinker->talker.first_rows=0",
        "edges.thinker->talker.rows=0",
        "edges.thinker->talker.deadline_s=0",
        "edges.client->talker.deadline_s=-1",
        "timeouts.startup_s=0",
        "timeouts.drain_s=-0.5",
        "timeouts.early_chunk_s=0",
    ],
)
def test_a_value_out_of_range_is_refused(assignment: str) -> None:
    (problem,) = problems_of(assignment)
    assert problem.startswith(f"--set: {assignment.partition('=')[0]}=")
    assert "= " in problem, "names the limit"


def test_the_least_values_are_allowed() -> None:
    config = deploy("server.port=0", "admission.max_queue=0", "timeouts.drain_s=0", "stages.talker.threads=0").config
    assert (config.server.port, config.admission.max_queue, config.timeouts.drain_s) == (0, 0, 0)


def test_every_problem_of_file_and_settings_is_reported_at_once(deploy_file: Path) -> None:
    deploy_file.write_text("servr: {port: 1}\nserver: {port: x}\nstages: {talker: [1], ghost: {}}\n")
    problems = problems_of("admission.max_queue=-3", "connector.arena_mib=no", file=deploy_file)
    expected = (
        "deploy.yaml: stages.talker takes one value, not a list",
        "deploy.yaml: unknown key 'servr.port'; at the top level there is 'server'",
        "deploy.yaml: server.port='x': Expected `int`",
        "deploy.yaml: unknown key 'stages.ghost'",
        "--set: admission.max_queue=-3: Expected `int` >= 0",
        "--set: connector.arena_mib=False: Expected `int`",
    )
    assert len(problems) == len(expected)
    for text, problem in zip(expected, problems, strict=True):
        assert text in problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("server: [", "while parsing a flow node"),
        ("- 1\n- 2", "expected keys and values at the top, got list"),
        ("just words", "expected keys and values at the top, got str"),
        ("server: {host: 2020-13-45}", "a value cannot be read (month must be in 1..12); quote it"),
        ("server: {host: 2020-12-24}", "server.host takes one value, not a date; quote it if it is text"),
        ("server: {port: !!timestamp x}", "a value cannot be read"),
        ("server: &loop {port: 1, more: *loop}", "unknown key"),
        ("[" * 3000, "a value cannot be read"),
    ],
)
def test_a_file_that_is_not_a_deploy_file_is_said_to_be_none(deploy_file: Path, text: str, problem: str) -> None:
    deploy_file.write_text(text)
    problems = problems_of(file=deploy_file)
    assert any(problem in found and "deploy.yaml" in found for found in problems), problems


def test_a_file_that_cannot_be_read_is_a_problem(deploy_file: Path) -> None:
    (problem,) = problems_of(file=deploy_file)
    assert "No such file" in problem and str(deploy_file) in problem
    deploy_file.write_bytes(b"server: \xff")
    (problem,) = problems_of(file=deploy_file)
    assert "utf-8" in problem


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "stages:\nserver: {}\n"])
def test_a_file_with_empty_groups_sets_nothing(deploy_file: Path, text: str) -> None:
    deploy_file.write_text(text)
    assert deploy(file=deploy_file) == deploy()


def test_settings_that_are_none_are_all_named() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_settings(("port", "server.port=1", "server.host=[", "x=2020-13-45"))
    first, second, third = raised.value.problems
    assert first == "--set port: expected path=value, e.g. stages.talker.replicas=2"
    assert second.startswith("--set server.host=[: while parsing")
    assert third.startswith("--set x=2020-13-45: a value cannot be read")


def test_a_value_may_hold_an_equals_sign_and_stays_text_if_it_is_no_scalar() -> None:
    assert parse_settings(("stages.talker.model=a=b", " server.host =2020-12-24")) == (
        Setting("stages.talker.model", "a=b", "--set"),
        Setting("server.host", "2020-12-24", "--set"),
    )


def test_settings_for_another_pipeline_are_refused() -> None:
    assert deploy("pipeline=voice").config.pipeline == "voice"
    (problem,) = problems_of("pipeline=qwen")
    assert problem == "these settings are for pipeline 'qwen', and this is 'voice'"


@pytest.mark.parametrize(
    ("assignments", "plan"),
    [
        (("rows=5",), ChunkPlan(16, 5)),
        (("first_rows=5",), ChunkPlan(5, 64)),
        (("rows=5", "first_rows=2"), ChunkPlan(2, 5)),
        (("whole=true",), WHOLE),
        (("whole=true", "rows=5"), WHOLE),
    ],
)
def test_an_edge_setting_changes_its_chunk_plan(assignments: tuple[str, ...], plan: ChunkPlan) -> None:
    deployment = deploy(*(f"edges.talker->code2wav.{text}" for text in assignments))
    assert deployment.chunk_plan(TO_CODE2WAV) == plan
    assert deployment.chunk_plan(TO_TALKER) == TO_TALKER.chunk_plan


def test_rows_set_on_a_text_edge_change_its_plan() -> None:
    assert deploy("edges.thinker->talker.rows=5").chunk_plan(TO_TALKER) == ChunkPlan(1, 5)


@pytest.mark.parametrize("field", ["rows", "first_rows"])
def test_one_number_makes_a_whole_edge_stream(field: str) -> None:
    edges = (TO_THINKER, TO_TALKER, dataclasses.replace(TO_CODE2WAV, chunk_plan=WHOLE))
    pipeline = dataclasses.replace(VOICE, edges=edges)
    deployment = resolve("voice", pipeline, settings=parse_settings((f"edges.talker->code2wav.{field}=5",)))
    assert deployment.chunk_plan(edges[2]) == ChunkPlan(5, 5)
    assert resolve("voice", pipeline).chunk_plan(edges[2]) == WHOLE


def test_in_edges_of_a_stage_have_the_pipelines_rules_unless_the_operator_sets_others() -> None:
    rules = deploy().in_edge_rules("thinker")
    assert set(rules) == {"listener->thinker", "client->thinker"}
    assert rules["listener->thinker"].start_when is StartWhen.ALL_CHUNKS
    assert rules["client->thinker"].start_when is StartWhen.ALL_CHUNKS
    assert deploy().in_edge_rules("talker")["client->talker"].start_when is StartWhen.FIRST_CHUNK
    changed = deploy("edges.thinker->talker.start_when=all_chunks", "edges.thinker->talker.deadline_s=2.5")
    rule = changed.in_edge_rules("talker")["thinker->talker"]
    assert (rule.start_when, rule.deadline_s) == (StartWhen.ALL_CHUNKS, 2.5)


def test_batch_limits_of_a_stage_are_the_operators_where_set() -> None:
    spec = deploy("stages.thinker.max_num_seqs=3", "stages.thinker.threads=7").stage_spec("thinker")
    assert (spec.max_num_seqs, spec.threads) == (3, 7)
    assert spec.max_batch_size == VOICE.stage("thinker").max_batch_size


NAMES = st.sampled_from(
    ["server", "port", "stages", "talker", "replicas", "edges", "thinker->talker", "rows", "deadline_s", "whole", "x"]
)
VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.dates() | st.binary(max_size=4)
)
TREES = st.recursive(
    VALUES,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(NAMES | st.text(max_size=4) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(TREES)
def test_any_yaml_tree_gives_a_deployment_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, tree: object
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    _resolves_or_refuses((), str(file))


@given(st.text(max_size=40))
@example("!!int x")
@example("!!float x")
@example("=")
@example("? [1]\n: 2")
def test_any_text_as_a_file_gives_a_deployment_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(text, encoding="utf-8")
    _resolves_or_refuses((), str(file))


def test_a_deployment_can_be_changed_by_more_settings_and_keeps_the_rest() -> None:
    before = resolve("voice", VOICE, settings=parse_settings(("stages.listener.threads=3", "server.port=9001")))
    after = change(before, parse_settings(("stages.listener.threads=4", "stages.listener.device=cuda:1")))
    assert (after.config.stages["listener"].threads, after.config.stages["listener"].device) == (4, "cuda:1")
    assert after.config.server.port == 9001
    assert before.config.stages["listener"].threads == 3
    with pytest.raises(ConfigError) as refused:
        change(before, parse_settings(("stages.talker.threds=4", "stages.talker.engine=llama_cpp")))
    assert len(refused.value.problems) == 1 and "'threads'" in refused.value.problems[0]


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "CUDA", "cuda:1 ", ""])
def test_a_device_that_cannot_be_meant_is_refused_with_what_can(device: str) -> None:
    with pytest.raises(ConfigError, match="expected cpu, cuda, npu or xpu, and which one if there are several"):
        resolve("voice", VOICE, settings=(Setting("stages.talker.device", device, "--set"),))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (("stages.talker.device=cuda",), "stages.talker.device=cuda: stage talker does not choose its device; leave"),
        (("stages.thinker.device=cuda:1",), "its engine autoregressive would take it (stages.thinker.engine)"),
        (("stages.thinker.engine=llama_cpp", "stages.thinker.device=npu"), "stage thinker does not choose its device"),
        (("stages.talker.device=cuda", "stages.code2wav.device=cuda"), "stage code2wav does not choose its device"),
    ],
)
def test_a_device_for_a_stage_that_would_not_work_on_it_is_refused(settings: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve("voice", VOICE, settings=parse_settings(settings))
    assert problem in refused.value.problems[-1]
    with pytest.raises(ConfigError):
        change(resolve("voice", VOICE), parse_settings(settings))


@pytest.mark.parametrize(
    "settings",
    [
        ("stages.talker.device=cpu",),
        ("stages.listener.device=cuda",),
        ("stages.thinker.engine=autoregressive", "stages.thinker.device=cuda:1"),
    ],
)
def test_a_device_for_a_stage_that_works_on_it_or_has_it_anyway_is_taken(settings: tuple[str, ...]) -> None:
    resolve("voice", VOICE, settings=parse_settings(settings))


PATHS = st.sampled_from(
    ["server.port", "server.host", "stages.talker.replicas", "edges.thinker->talker.rows", "timeouts.drain_s", "stages"]
) | st.text(max_size=12)


@given(st.lists(st.builds("{}={}".format, PATHS, st.integers() | st.floats() | st.text(max_size=8)), max_size=4))
@example(["server.port=!!timestamp x"])
def test_any_settings_give_a_deployment_or_a_config_error(assignments: list[str]) -> None:
    _resolves_or_refuses(tuple(assignments), "")


def _resolves_or_refuses(assignments: tuple[str, ...], file: str) -> None:
    try:
        deployment = resolve("voice", VOICE, deploy_file=file, settings=parse_settings(assignments))
    except ConfigError as error:
        problems = error.problems
    else:
        problems = ()
        assert deployment.config.stages["talker"].replicas >= 1
        assert 0 <= deployment.config.server.port <= 65_535
    assert all(problems)


@pytest.mark.parametrize(
    "assignment",
    [
        'server.cors_origins="*"',
        'server.cors_origins=""',
        "server.cors_origins=https://voice.example",
        "server.cors_origins=https://voice.example:8443, http://localhost:3000,capacitor://localhost",
        "server.trusted_proxies=127.0.0.1, 10.0.0.0/8,fd00::/8",
        'server.allowed_hosts="*"',
        "server.allowed_hosts=voice.example, my-pc",
    ],
)
def test_origins_names_and_proxies_are_lists_in_one_text(assignment: str) -> None:
    path, _, value = assignment.partition("=")
    server = deploy(assignment).config.server
    values = {
        "server.cors_origins": server.cors_origins,
        "server.trusted_proxies": server.trusted_proxies,
        "server.allowed_hosts": server.allowed_hosts,
    }
    assert values[path] == value.strip('"')
