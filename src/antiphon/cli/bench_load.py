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
    )


def _console() -> "Console":
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=_FILE_WIDTH)
