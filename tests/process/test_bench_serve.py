"""`antiphon bench serve` on servers of its own and of others; short runs whose answers are all checked."""

import json
import subprocess
import sys
from pathlib import Path

from tests.process.conftest import Server, eventually, killed_at_the_end

TIMEOUT_S = 120.0
LATE = ("--max-lag", "10")  # on a busy machine; the refusal has a test of its own


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "antiphon", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_a_pipeline_is_served_loaded_measured_and_stopped(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    load = (
        "--task",
        "chat-audio",
        "--rate",
        "20",
        "--num-requests",
        "20",
        "--input-tokens",
        "5:20",
        "--output-tokens",
        "0",
    )
    ended = bench("serve", "sim-voice", *load, *LATE, "--slo", "ttft=60", "--out", str(out))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    run = json.loads(out.read_text())
    assert (run["totals"]["num_requests"], run["totals"]["num_failed"], run["totals"]["num_wrong"]) == (20, 0, 0)
    assert run["totals"]["goodput"] == run["totals"]["request_throughput"] > 0
    for metric in ("ttft", "e2el", "audio_ttfp", "audio_duration", "audio_underrun"):
        assert len(run["values"][metric]) == 20
        assert "p99" not in run["distributions"][metric]
    first_s = zip(run["values"]["ttft"], run["values"]["e2el"], strict=True)
    assert all(0 < ttft < e2el for ttft, e2el in first_s)
    cost = run["per_request"]
    assert cost["cpu_s load generator"] > 0
    assert {"cpu_s thinker/0", "cpu_s api-server/0", "cpu_s orchestrator"} <= cost.keys()
    assert cost["messages orchestrator control"] > 1
    assert cost["chunk_bytes from talker/0"] > 2000  # frames of 2 KiB
    assert run["replicas"]["code2wav/0"]["chunks_received_total"] > 20
    assert run["environment"]["cores"] >= 1
    assert "audio_ttfp" in ended.stdout and "request_throughput" in ended.stdout


def test_a_server_that_runs_is_loaded_in_a_closed_loop(sim_voice_server: Server, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    load = "--task", "speech", "--max-concurrency", "4", "--num-requests", "12", "--input-tokens", "9"
    ended = bench("serve", sim_voice_server.url, *load, *LATE, "--out", str(out))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    run = json.loads(out.read_text())
    assert run["totals"]["num_failed"] == 0 and run["settings"]["load"]["rate_rps"] is None
    assert "ttft" not in run["values"] and len(run["values"]["audio_rtf"]) == 12


def test_results_are_not_shown_when_the_load_generator_was_the_bottleneck(sim_voice_server: Server) -> None:
    ended = bench("serve", sim_voice_server.url, "--rate", "50", "--num-requests", "5", "--max-lag", "0.0000001")
    assert ended.returncode == 1
    assert "error: the load generator was the bottleneck" in ended.stderr and "ms late" in ended.stderr
    assert "ttft" not in ended.stdout


def test_requests_that_fail_are_told_and_make_the_command_fail(sim_voice_server: Server, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("All is well.\nraise-in-thinker:All is not well.\n")
    load = "--rate", "50", "--num-requests", "4", "--num-warmups", "0", "--prompts", str(prompts)
    ended = bench("serve", sim_voice_server.url, *load, *LATE)
    assert ended.returncode == 1
    assert "4, failed 2, wrong 0" in ended.stdout
    assert "error: request 1: " in ended.stderr


def test_where_nothing_listens_is_said_in_one_line() -> None:
    ended = bench("serve", "http://127.0.0.1:9", "--rate", "1")
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: nothing answers at 127.0.0.1:9")


def test_a_sweep_holds_each_arm_against_the_ideal(tmp_path: Path) -> None:
    out = tmp_path / "sweep.json"
    load = "--num-requests", "6", "--num-warmups", "1", "--input-tokens", "20", "--output-tokens", "10", *LATE
    arms = "--arms", "next", "--arm", "slow=stages.thinker.options.base_ms=120"
    ended = bench("sweep", "sim-qwen3-omni", "--rates", "8", *arms, "--repeats", "1", *load, "--out", str(out))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    sweep = json.loads(out.read_text())
    following, slow = sweep["points"]
    assert (following["arm"], slow["arm"]) == ("next", "slow")
    assert following["ideal_mean_s"][0] < 0.06 < 0.12 <= slow["ideal_mean_s"][0]
    for run, step_s in zip(sweep["runs"], (0.012, 0.12), strict=True):
        assert min(run["run"]["values"]["ttft"]) > 0.97 * step_s  # nothing is faster than a step, whose jitter is 2 %
    assert slow["ratio"] > 0.8 and following["ratio"] > 0.8  # what comes late meets another step than it should have
    assert sweep["capacities_rps"]["thinker"] > 8
    assert sweep["runs"][0]["run"]["totals"]["num_wrong"] == 0
    assert all(point["cpu_s"][0] > 0 and point["client_bytes"][0] > 100 for point in sweep["points"])
    assert "measured / ideal" in ended.stdout


def test_what_a_sweep_has_measured_is_kept_when_it_is_ended(tmp_path: Path) -> None:
    out = tmp_path / "sweep.json"
    load = "--num-requests", "6", "--num-warmups", "0", "--input-tokens", "20", "--output-tokens", "10", *LATE
    arms = "--arms", "next", "--arm", "endless=stages.thinker.options.base_ms=60000"
    sweep = "sweep", "sim-qwen3-omni", "--rates", "8", *arms, "--repeats", "1", *load, "--out", str(out)
    command = [sys.executable, "-m", "antiphon", "bench", *sweep]
    with killed_at_the_end(subprocess.Popen(command, stdout=subprocess.DEVNULL)) as process:
        assert eventually(lambda: out.exists() and out.read_text().endswith("}\n"), TIMEOUT_S)
        assert process.poll() is None
        process.terminate()
        process.wait(TIMEOUT_S)
    kept = json.loads(out.read_text())
    assert [(run["arm"], run["run"]["totals"]["num_requests"]) for run in kept["runs"]] == [("next", 6)]
