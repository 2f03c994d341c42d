"""`antiphon bench serve`, `sweep`, `ideal` and `compare`: a server under load, and what its runs say.

In: a target and how to load it. Out: tables, a progress bar meanwhile, JSON, charts. Does not know: how it is measured.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

    from antiphon.bench.serve.messages import Progress
    from antiphon.bench.serve.run import ServeSettings
    from antiphon.bench.sweep import Point

F = TypeVar("F", bound=Callable[..., Any])
_FILE_WIDTH = 140
_JSON_FILE = click.Path(dir_okay=False, path_type=Path)


def load_options(function: F) -> F:
    """What is asked, how much of it, and how late the load generator may be."""
    options = [
        click.option("--task", type=click.Choice(["chat", "chat-audio", "speech"]), default="chat", show_default=True),
        click.option("--num-requests", type=click.IntRange(min=1), default=200, show_default=True),
        click.option("--num-warmups", type=click.IntRange(min=0), default=4, show_default=True, help="Not counted."),
        click.option("--input-tokens", default="128", show_default=True, help="Words of a prompt: 2500 or 2000:3000."),
        click.option("--output-tokens", default="128", show_default=True, help="As above; 0: where the model ends."),
        click.option(
            "--prompts",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help='A file of prompts, one per line: text, or {"prompt": ..., "max_tokens": ...}.',
        ),
        click.option(
            "--arrivals", type=click.Choice(["poisson", "constant", "burst"]), default="poisson", show_default=True
        ),
        click.option("--burstiness", type=float, default=1.0, show_default=True, help="Of poisson; below 1: clusters."),
        click.option("--burst-size", type=int, default=8, show_default=True, help="Requests that come together."),
        click.option("--max-concurrency", type=int, default=0, help="Most open requests; alone: a closed loop."),
        click.option("--seed", type=int, default=0, show_default=True, help="Of arrivals, lengths and words."),
        click.option("--slo", default="", metavar="METRIC=LIMIT,...", help="For goodput: ttft=0.5,audio_underrun=0.1"),
        click.option("--model", default="", help="Default: the server's first."),
        click.option(
            "--max-lag",
            type=float,
            default=0.02,
            show_default=True,
            help="Seconds; a later load generator says nothing.",
        ),
        click.option("--no-audio-check", is_flag=True, help="Save the load generator the work of checking samples."),
        click.option("--deadline", type=float, default=600.0, show_default=True, help="Seconds for one answer."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@click.command("serve")
@click.argument("target", metavar="URL|PIPELINE")
@click.option("--rate", type=float, help="Requests per second (an open loop).")
@click.option("--deploy", "deploy_file", default="", metavar="FILE", help="Deploy file of the server that is started.")
@click.option("--set", "assignments", multiple=True, metavar="PATH=VALUE", help="One setting of it. Repeatable.")
@click.option("--out", type=_JSON_FILE, help="Also write everything to a JSON file.")
@load_options
def serve(
    target: str, rate: float | None, deploy_file: str, assignments: tuple[str, ...], out: Path | None, **options: Any
) -> None:
    """Load a server: the one at URL, or one that is started for PIPELINE and stopped again."""
    from antiphon.bench.serve.report import as_json, tables, write_json
    from antiphon.bench.serve.run import Target, run_serve

    settings = _settings(math.inf if rate is None else rate, options)
    with _ProgressBar(settings.num_requests) as bar:
        run = run_serve(Target.parse(target, deploy_file, assignments), settings, bar.show)
    console = _console()
    for table in tables(run):
        console.print(table)
    document = as_json(run)
    if out is not None:
        write_json(document, out)
        click.echo(f"written to {out}")
    for line in document["errors"] if isinstance(document["errors"], list) else ():
        click.echo(f"error: {line}", err=True)
    if run.totals.num_failed or run.totals.num_wrong:
        sys.exit(1)


@click.command("sweep")
@click.argument("pipeline")
@click.option("--rates", required=True, metavar="RATE,...", help="Requests per second, ascending.")
@click.option("--arms", default="", metavar="NAME,...", help="next, both: where hidden states go; default.")
@click.option("--arm", "own_arms", multiple=True, metavar="NAME=PATH=VALUE,...", help="One more arm. Repeatable.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--metric", type=click.Choice(["ttft", "audio_ttfp", "e2el"]), default="ttft", show_default=True)
@click.option("--deploy", "deploy_file", default="", metavar="FILE", help="Deploy file of all arms.")
@click.option("--set", "assignments", multiple=True, metavar="PATH=VALUE", help="One setting of all arms. Repeatable.")
@click.option("--out", type=_JSON_FILE, help="Also write everything to a JSON file.")
@click.option("--chart", type=_JSON_FILE, help="Draw it: PATH.png and PATH.html. Needs matplotlib (the extra `plot`).")
@load_options
def sweep(
    pipeline: str,
    rates: str,
    arms: str,
    own_arms: tuple[str, ...],
    repeats: int,
    metric: str,
    deploy_file: str,
    assignments: tuple[str, ...],
    out: Path | None,
    chart: Path | None,
    **options: Any,
) -> None:
    """Load PIPELINE at rising rates, in arms that take turns, and hold each against the ideal."""
    from antiphon.bench.chart import Chart, write_chart
    from antiphon.bench.serve.report import write_json
    from antiphon.bench.serve.run import Target
    from antiphon.bench.sweep import Arm, Sweep, SweepRun, as_json, capacities_rps, named_arms, points_of, run_sweep

    rates_rps = _rates(rates)
    named = named_arms(pipeline, list(filter(None, arms.split(","))) or ([] if own_arms else ["default"]))
    chosen = (*named, *map(Arm.parse, own_arms))
    plan = Sweep(
        Target("", pipeline, deploy_file, assignments), _settings(rates_rps[0], options), rates_rps, chosen, repeats
    )
    runs: list[SweepRun] = []
    with _ProgressBar(plan.settings.num_requests) as bar:
        for run in run_sweep(plan, bar.say, bar.show):
            runs.append(run)
            if out is not None:  # after each: what a long sweep has measured is there, however it ends
                write_json(as_json(plan, runs, metric), out)
    points, capacities = points_of(plan, runs, metric), capacities_rps(plan)
    _show_points(points, metric, capacities)
    if out is not None:
        click.echo(f"written to {out}")
    if chart is not None:
        title = f"{pipeline}: {options['num_requests']} requests, {repeats} repeats"
        for path in write_chart(Chart(title, metric, points, capacities), chart):
            click.echo(f"drawn: {path}")


def _rates(text: str) -> tuple[float, ...]:
    from antiphon.errors import ConfigError

    try:
        rates = tuple(float(rate) for rate in text.split(","))
    except ValueError:
        rates = ()
    if not rates or min(rates) <= 0 or list(rates) != sorted(set(rates)):
        raise ConfigError([f"--rates {text}: write requests per second, ascending: 0.2,0.4,0.8"])
    return rates


def _show_points(points: "list[Point]", metric: str, capacities: dict[str, float]) -> None:
    from rich.table import Table

    from antiphon.bench.chart import figures_of

    table = Table(title=f"{metric}, s; CPU and bytes to api-servers per request", title_justify="left")
    for column in (
        "arm",
        "req/s",
        "mean",
        "p99",
        "spread",
        "ideal mean",
        "measured / ideal",
        "repeats",
        "CPU ms",
        "client KB",
    ):
        table.add_column(column, justify="left" if column == "arm" else "right", no_wrap=True)
    for point in points:
        table.add_row(point.arm, f"{point.rate_rps:g}", *figures_of(point))
    console = _console()
    console.print(table)
    for point in points:
        for problem in point.problems:
            console.print(f"{point.arm} at {point.rate_rps:g}/s: {problem}")
    if capacities:
        console.print("stages are full at: " + ", ".join(f"{stage} {rps:.3g}/s" for stage, rps in capacities.items()))


@click.command("ideal")
@click.argument("pipeline")
@click.option("--rate", type=float, required=True, help="Requests per second.")
@click.option("--deploy", "deploy_file", default="", metavar="FILE", help="Deploy file.")
@click.option("--set", "assignments", multiple=True, metavar="PATH=VALUE", help="One setting. Repeatable.")
@click.option("--out", type=_JSON_FILE, help="Also write the values to a JSON file, as bench serve does.")
@load_options
def ideal(
    pipeline: str, rate: float, deploy_file: str, assignments: tuple[str, ...], out: Path | None, **options: Any
) -> None:
    """Compute what a runtime without any cost would do with a simulated PIPELINE under the same load: the floor."""
    from antiphon.bench.measures import distribution
    from antiphon.bench.serve.report import metrics_table, write_json
    from antiphon.bench.sweep import ideal_values, pipeline_timing
    from antiphon.cli.options import make_deployment

    settings = _settings(rate, options)
    deployment = make_deployment(pipeline, deploy_file, assignments)
    timing = pipeline_timing(deployment, settings.task)
    values = ideal_values(deployment, settings)
    console = _console()
    console.print(metrics_table(values, f"{pipeline} at {rate:g} req/s, without a runtime's cost"))
    num_output = 1 if settings.output_tokens is None else round(settings.output_tokens.mean)
    for stage, rps in timing.capacity_rps(round(settings.input_tokens.mean), num_output).items():
        console.print(f"{stage} is full at {rps:.3g} req/s")
    if out is not None:
        summaries = {name: distribution(found) for name, found in values.items()}
        write_json({"kind": "serve", "values": values, "distributions": summaries}, out)
        click.echo(f"written to {out}")


@click.command("compare")
@click.argument("a", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("b", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--all", "show_all", is_flag=True, help="Also what does not differ, and every cost.")
def compare(a: Path, b: Path, show_all: bool) -> None:
    """Hold B against A (files of bench serve or sweep), and say which differences are larger than the noise."""
    from rich.table import Table

    from antiphon.bench.compare import compare as compare_files
    from antiphon.bench.compare import load_measured

    differences = compare_files(load_measured(a), load_measured(b))
    table = Table(title=f"{b} against {a}", title_justify="left")
    for column in ("point", "measure", "", "A", "B", "B / A", "95 %", "larger than noise"):
        table.add_column(column, justify="left" if column in ("point", "measure", "") else "right", no_wrap=True)
    verdicts = {True: "[bold]yes[/bold]", False: "no", None: "not known"}
    shown = [each for each in differences if show_all or each.is_real is not None]
    for each in shown:
        interval = "-" if each.low is None else f"{each.low:.3f} .. {each.high:.3f}"
        figures = f"{each.a:.4g}", f"{each.b:.4g}", f"{each.ratio:.3f}", interval
        table.add_row(each.point, each.name, each.statistic, *figures, verdicts[each.is_real])
    _console().print(table)
    num_real = sum(each.is_real is True for each in differences)
    click.echo(f"{num_real} of {len(shown)} differences are larger than the noise")


class _ProgressBar:
    """Owns a progress bar on stderr, or nothing where nobody looks."""

    def __init__(self, num_requests: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("starting", total=num_requests)

    def __enter__(self) -> "_ProgressBar":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, line: str) -> None:
        """A line above the bar, and a new run under it."""
        self._bar.console.print(line, highlight=False)
        self._bar.reset(self._task)

    def show(self, progress: "Progress") -> None:
        """How far the run is."""
        num_open = progress.num_sent - progress.num_ended
        failed = f", {progress.num_failed} failed" if progress.num_failed else ""
        self._bar.update(self._task, completed=progress.num_ended, description=f"{num_open} open{failed}")


def _settings(rate_rps: float, options: dict[str, Any]) -> "ServeSettings":
    from antiphon.bench.serve.arrivals import Load, Shape
    from antiphon.bench.serve.dataset import TokenRange
    from antiphon.bench.serve.messages import Task
    from antiphon.bench.serve.metrics import Slo
    from antiphon.bench.serve.run import ServeSettings

    return ServeSettings(
        load=Load(
            rate_rps,
            Shape(options["arrivals"]),
            options["burstiness"],
            options["burst_size"],
            options["max_concurrency"],
            options["seed"],
        ),
        num_requests=options["num_requests"],
        task=Task(options["task"]),
        num_warmups=options["num_warmups"],
        input_tokens=TokenRange.parse(options["input_tokens"]),
        output_tokens=None if options["output_tokens"] == "0" else TokenRange.parse(options["output_tokens"]),
        prompts_file=options["prompts"],
        slo=Slo.parse(options["slo"]),
        model=options["model"],
        max_lag_s=options["max_lag"],
        deadline_s=options["deadline"],
        checks_audio=not options["no_audio_check"],
    )


def _console() -> "Console":
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=_FILE_WIDTH)
