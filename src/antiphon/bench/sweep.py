"""One pipeline at rising rates, in several arms that take turns, beside the ideal of each.

In: a Sweep. Out: SweepRuns, and per arm and rate the figures of its repeats. Does not know: charts, tables.

Arms are deploy settings. Within a repeat the arms take turns at each rate, in an order that the next repeat turns
round, so that a busy or warm machine is so for all of them. All of a repeat's arms get the same arrivals and prompts.
"""

import dataclasses
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from antiphon.bench.ideal.profile import has_timing, timing_of
from antiphon.bench.ideal.simulation import Arrival, simulate
from antiphon.bench.ideal.timing import PipelineTiming
from antiphon.bench.measures import distribution
from antiphon.bench.report import Json, fingerprint
from antiphon.bench.serve.arrivals import due_times_s
from antiphon.bench.serve.messages import Progress, Task
from antiphon.bench.serve.metrics import Values, values_of
from antiphon.bench.serve.report import as_json as run_json
from antiphon.bench.serve.report import per_request, settings_json
from antiphon.bench.serve.run import ServeRun, ServeSettings, Target, run_serve
from antiphon.config.pipeline import Modality
from antiphon.config.resolve import Deployment, parse_settings, resolve
from antiphon.errors import ConfigError, StageError
from antiphon.models.registry import load_pipeline

KIND = "sweep"
_LANE_OPTION = "hidden_states_lane"
_LANES = ("next", "both")
_GENERATOR_CPU = "cpu_s load generator"
_CLIENT_BYTES = re.compile(r"bytes api-server/\d+ client")
_MODALITIES = {
    Task.CHAT: frozenset({Modality.TEXT}),
    Task.CHAT_AUDIO: frozenset({Modality.TEXT, Modality.AUDIO}),
    Task.SPEECH: frozenset({Modality.AUDIO}),
}


@dataclass(frozen=True)
class Arm:
    """A name and the deploy settings that make it."""

    name: str
    settings: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Arm":
        """`wide=stages.talker.replicas=2,stages.code2wav.replicas=2`; ConfigError for anything else."""
        name, _, assignments = text.partition("=")
        settings = tuple(filter(None, assignments.split(",")))
        if not name or not all("=" in setting for setting in settings):
            raise ConfigError([f"--arm {text}: write name=path=value,path=value"])
        return cls(name, settings)


def named_arms(pipeline: str, names: Sequence[str]) -> list[Arm]:
    """`next` and `both`: where the hidden states of a simulated pipeline go; `default`: the pipeline as it is."""
    spec, found = load_pipeline(pipeline), []
    stages = [stage.name for stage in spec.stages if any(option.name == _LANE_OPTION for option in stage.options)]
    for name in names:
        if name == "default":
            found.append(Arm(name))
        elif name in _LANES and stages:
            found.append(Arm(name, tuple(f"stages.{stage}.options.{_LANE_OPTION}={name}" for stage in stages)))
        else:
            raise ConfigError([f"{spec.name} has no arm {name!r}; name one with --arm NAME=PATH=VALUE, or use default"])
    return found


@dataclass(frozen=True)
class Sweep:
    """What is to be measured. settings.load.rate_rps is replaced by each rate; each repeat has a seed of its own."""

    target: Target
    settings: ServeSettings
    rates_rps: tuple[float, ...]
    arms: tuple[Arm, ...]
    num_repeats: int

    @property
    def num_runs(self) -> int:
        """Servers that will be started."""
        return len(self.rates_rps) * len(self.arms) * self.num_repeats

    def settings_of(self, rate_rps: float, repeat: int) -> ServeSettings:
        """The load of one run."""
        load = dataclasses.replace(self.settings.load, rate_rps=rate_rps, seed=self.settings.load.seed + repeat)
        return dataclasses.replace(self.settings, load=load)

    def target_of(self, arm: Arm) -> Target:
        """The server of one run."""
        return dataclasses.replace(self.target, settings=(*self.target.settings, *arm.settings))

    def schedule(self) -> Iterator[tuple[int, float, Arm]]:
        """Repeat, rate and arm of each run, in the order of the runs."""
        for repeat in range(self.num_repeats):
            for rate_rps in self.rates_rps:
                for arm in self.arms if repeat % 2 == 0 else self.arms[::-1]:
                    yield repeat, rate_rps, arm


@dataclass(frozen=True)
class SweepRun:
    """One run; `run` is None where it could not be measured, and `problem` says why."""

    repeat: int
    rate_rps: float
    arm: str
    run: ServeRun | None
    ideal: Values
    problem: str = ""


@dataclass(frozen=True)
class Point:
    """One arm at one rate. Figures are seconds, one per measured repeat; the ideal's are of the same arrivals.

    A repeat of fewer than 100 answers has no p99. cpu_s: of all the server's processes, client_bytes: that the
    api-servers got from stages, both per request.
    """

    arm: str
    rate_rps: float
    mean_s: list[float] = field(default_factory=list)
    p99_s: list[float] = field(default_factory=list)
    ideal_mean_s: list[float] = field(default_factory=list)
    ideal_p99_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    client_bytes: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> float | None:
        """measured / ideal, of the means over all repeats; None without either."""
        if not self.mean_s or not self.ideal_mean_s:
            return None
        return statistics.fmean(self.mean_s) / statistics.fmean(self.ideal_mean_s)

    @property
    def spread(self) -> float | None:
        """(highest - lowest mean) / their mean; None below two repeats."""
        if len(self.mean_s) < 2:
            return None
        return (max(self.mean_s) - min(self.mean_s)) / statistics.fmean(self.mean_s)


def run_sweep(sweep: Sweep, say: Callable[[str], None], progress: Callable[[Progress], None]) -> Iterator[SweepRun]:
    """Each run as it ends. One that fails, or whose load generator was in the way, is noted, and the sweep goes on."""
    deployments = {arm.name: _deployment(sweep.target_of(arm)) for arm in sweep.arms}
    for number, (repeat, rate_rps, arm) in enumerate(sweep.schedule(), 1):
        say(f"run {number} of {sweep.num_runs}: {arm.name} at {rate_rps:g} req/s, repeat {repeat + 1}")
        settings = sweep.settings_of(rate_rps, repeat)
        ideal = ideal_values(deployments[arm.name], settings)
        try:
            run = run_serve(sweep.target_of(arm), settings, progress)
        except StageError as error:
            say(f"not measured: {error.message}")
            yield SweepRun(repeat, rate_rps, arm.name, None, ideal, error.message)
            continue
        problem = "" if not run.totals.num_failed else f"{run.totals.num_failed} of {run.totals.num_requests} failed"
        yield SweepRun(repeat, rate_rps, arm.name, run, ideal, problem)


def _deployment(target: Target) -> Deployment:
    spec, settings = load_pipeline(target.pipeline), parse_settings(target.settings)
    return resolve(target.pipeline, spec, deploy_file=target.deploy_file, settings=settings)


def pipeline_timing(deployment: Deployment, task: Task) -> PipelineTiming:
    """The stages of a task; ConfigError where their times are not known."""
    return timing_of(deployment, _MODALITIES[task], "speech" if task is Task.SPEECH else "chat")


def ideal_values(deployment: Deployment, settings: ServeSettings) -> Values:
    """The metrics of the same requests under a runtime that costs nothing; empty where no stage's times are known."""
    if not has_timing(deployment) or settings.load.is_closed:
        return {}
    prompts = settings.prompts()[settings.num_warmups :]
    due_s = due_times_s(settings.load, settings.num_requests)
    arrivals = [
        Arrival(at_s, prompt.num_input_tokens, prompt.max_tokens) for at_s, prompt in zip(due_s, prompts, strict=True)
    ]
    return values_of(simulate(pipeline_timing(deployment, settings.task), arrivals))


def points_of(sweep: Sweep, runs: Sequence[SweepRun], metric: str) -> list[Point]:
    """One per arm and rate, in the order of the arms and the rates."""
    points = []
    for arm in sweep.arms:
        for rate_rps in sweep.rates_rps:
            point = Point(arm.name, rate_rps)
            for run in (run for run in runs if (run.arm, run.rate_rps) == (arm.name, rate_rps)):
                _add(point, run, metric)
            points.append(point)
    return points


def _add(point: Point, run: SweepRun, metric: str) -> None:
    if run.problem:
        point.problems.append(run.problem)
    if run.run is not None:
        cost = per_request(run.run)
        point.cpu_s.append(sum(cost[name] for name in cost if name.startswith("cpu_s ") and name != _GENERATOR_CPU))
        point.client_bytes.append(sum(cost[name] for name in cost if _CLIENT_BYTES.fullmatch(name)))
    pairs = [(run.run.values if run.run is not None else {}, point.mean_s, point.p99_s)]
    pairs.append((run.ideal, point.ideal_mean_s, point.ideal_p99_s))
    for values, means, p99s in pairs:
        if found := values.get(metric):
            means.append(statistics.fmean(found))
            p99s += [p99] if (p99 := distribution(found).get("p99")) is not None else []


def capacities_rps(sweep: Sweep) -> dict[str, float]:
    """Stage -> request rate at which it is full, of the first arm; empty where no times are known."""
    deployment, settings = _deployment(sweep.target_of(sweep.arms[0])), sweep.settings
    if not has_timing(deployment):
        return {}
    num_output = 1 if settings.output_tokens is None else round(settings.output_tokens.mean)
    timing = pipeline_timing(deployment, settings.task)
    return timing.capacity_rps(round(settings.input_tokens.mean), num_output)


def as_json(sweep: Sweep, runs: Sequence[SweepRun], metric: str) -> Json:
    """Everything; `bench compare` reads it."""
    return {
        "kind": KIND,
        "environment": fingerprint(),
        "target": dataclasses.asdict(sweep.target),
        "settings": settings_json(sweep.settings),
        "arms": [dataclasses.asdict(arm) for arm in sweep.arms],
        "rates_rps": sweep.rates_rps,
        "capacities_rps": capacities_rps(sweep),
        "metric": metric,
        "points": [
            {**dataclasses.asdict(point), "ratio": point.ratio, "spread": point.spread}
            for point in points_of(sweep, runs, metric)
        ],
        "runs": [
            {
                "repeat": run.repeat,
                "rate_rps": run.rate_rps,
                "arm": run.arm,
                "problem": run.problem,
                "ideal": {name: values for name, values in run.ideal.items() if name != "itl"},
                "run": None if run.run is None else run_json(run.run),
            }
            for run in runs
        ],
    }
