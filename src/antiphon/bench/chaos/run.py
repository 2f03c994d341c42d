"""A chaos run: one server after the other, and one ledger over all of them.

In: a Plan. Out: a ChaosReport. Does not know: how a plan is made, how a report is shown.
"""

import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvloop

from antiphon.bench.chaos.actions import Ask, Plan, make_plan, text_of
from antiphon.bench.chaos.answer import End, Expected
from antiphon.bench.chaos.episode import EpisodeRun, Event
from antiphon.bench.chaos.ledger import Ledger, Line
from antiphon.bench.chaos.server import API_SERVER, CLEANER, LAUNCHER, ChaosServer
from antiphon.bench.report import fingerprint
from antiphon.config.pipeline import PipelineSpec
from antiphon.ids import ORCHESTRATOR
from antiphon.models.registry import load_pipeline
from antiphon.models.simulated.voice_pipeline import COMMANDS, PIPELINE
from antiphon.models.simulated.voice_values import spoken
from antiphon.transport.address import RunDirectory

_STARTED_AGAIN = b" is started again"
"""In the line that an engine client writes for a request whose replica has died."""
NUM_REPLICAS, NUM_API_SERVERS = 2, 2
_OUTPUT_DEADLINE_S, _DEADLINE_S = 15.0, 40.0
_PATIENCE_WITH_NETWORKS = 4.0
_SETTINGS = (
    f"server.api_servers={NUM_API_SERVERS}",
    "server.max_client_backlog_mib=1",
    "admission.max_inflight=32",
    "admission.max_queue=48",
    "connector.arena_mib=4",
    "timeouts.early_chunk_s=10",
    "restarts.max_restarts=1000",
    "restarts.backoff_s=0.1",
    "restarts.healthy_s=1",
)


@dataclass(frozen=True)
class ChaosReport:
    """What a run was, what happened, what came of it. log: what the servers have written."""

    plan: Plan
    events: list[Event]
    ledger: Ledger
    log: Path


def run_chaos(pipeline: str, seconds: float, seed: int, rate: float, say: Callable[[str], None]) -> ChaosReport:
    """Plan and run; AntiphonError if a server does not start."""
    spec = load_pipeline(pipeline)
    is_simulated = spec is PIPELINE
    stages = tuple(stage.name for stage in spec.stages)
    plan = make_plan(seconds, seed, rate, stages, COMMANDS if is_simulated else ())
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    ledger = Ledger(is_simulated=is_simulated)
    report = ChaosReport(plan, [], ledger, directory / "server.log")
    runtime_dir = directory / "run"
    runtime_dir.mkdir()
    handler = logging.FileHandler(report.log)  # what the engine client of this process says
    logging.getLogger("antiphon").addHandler(handler)
    uvloop.run(_run(pipeline, spec, report, runtime_dir, say))
    handler.close()
    logging.getLogger("antiphon").removeHandler(handler)
    ledger.num_started_again = report.log.read_bytes().count(_STARTED_AGAIN)
    shutil.rmtree(runtime_dir, ignore_errors=True)
    if ledger.is_clean:
        shutil.rmtree(directory, ignore_errors=True)
    return report


async def _run(
    pipeline: str, spec: PipelineSpec, report: ChaosReport, runtime_dir: Path, say: Callable[[str], None]
) -> None:
    began_s = time.monotonic()
    expect = _expect_simulated if spec is PIPELINE else _expect_nothing
    patience = 1.0 if spec is PIPELINE else _PATIENCE_WITH_NETWORKS
    settings = (*_SETTINGS, *(f"stages.{stage.name}.replicas={NUM_REPLICAS}" for stage in spec.stages))
    settings += (f"server.output_deadline_s={patience * _OUTPUT_DEADLINE_S:g}",)
    with report.log.open("ab") as log:
        for number, episode in enumerate(report.plan.episodes, 1):
            say(f"server {number} of {len(report.plan.episodes)}, until {episode.ending}")
            run = EpisodeRun(
                ChaosServer(pipeline, settings, runtime_dir, log),
                spec.name,
                expect,
                lambda: time.monotonic() - began_s,
                report.ledger,
                report.events,
                _expected_processes(spec),
                tuple(stage.name for stage in spec.stages),
                patience * _DEADLINE_S,
            )
            await run.run(episode)
    RunDirectory.create(str(runtime_dir)).remove()  # what a start does about servers that were killed as a whole
    report.ledger.findings.files_left += [f"after a start: {path}" for path in runtime_dir.rglob("*")]


def _expected_processes(spec: PipelineSpec) -> Counter[str]:
    stages = {stage.name: NUM_REPLICAS for stage in spec.stages}
    return Counter({LAUNCHER: 1, CLEANER: 1, ORCHESTRATOR: 1, API_SERVER: NUM_API_SERVERS, **stages})


def _expect_simulated(ask: Ask) -> Expected:
    text = text_of(ask).removeprefix(f"{ask.fault}:")
    return Expected(text if ask.form.is_chat else "", spoken(text) if ask.form.has_audio else b"")


def _expect_nothing(ask: Ask) -> Expected:
    return Expected(None, None)


def as_json(report: ChaosReport) -> bytes:
    """Everything that tells one run from another, and what came of it."""
    ledger, asks = report.ledger, report.ledger.asks
    failed = [
        {"ask": asks[o.number], "outcome": o} for o in ledger.outcomes if o.is_wrong or o.end in (End.FAILED, End.LOST)
    ]
    document = {
        "environment": fingerprint(),
        "seed": report.plan.seed,
        "seconds": report.plan.seconds,
        "rate": report.plan.rate,
        "is_clean": ledger.is_clean,
        "ledger": {line.name: {"value": line.value, "ok": line.ok} for line in ledger.lines()},
        "events": report.events,
        "disturbances": ledger.disturbances,
        "growths": ledger.growths,
        "not_finished": failed,
        "plan": report.plan.episodes,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def shown(lines: list[Line]) -> list[str]:
    """The ledger as text."""
    marks = {True: "ok", False: "WRONG", None: ""}
    width = max(len(line.name) for line in lines)
    return [f"{line.name:<{width}}  {marks[line.ok]:<5}  {line.value}" for line in lines]
