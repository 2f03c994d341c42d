"""`antiphon bench`: measure a pipeline, parts of the runtime, and what is left after chaos.

In: what to measure, how thoroughly. Out: a table, and JSON. Does not know: how anything is measured.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from antiphon.cli.bench_load import compare, ideal, serve, sweep

if TYPE_CHECKING:
    from antiphon.bench.measures import Row
    from antiphon.bench.report import Report

_FILE_WIDTH = 140
_FILE = click.Path(dir_okay=False, path_type=Path)
_out_option = click.option("--out", type=_FILE, help="Also write the figures to a JSON file.")
_quick_option = click.option("--quick", is_flag=True, help="Fewer repetitions: a minute instead of several.")


@click.group("bench")
def command() -> None:
    """Measure a pipeline, parts of the runtime, and what is left after chaos."""


for _each in (serve, sweep, ideal, compare):
    command.add_command(_each)


@command.command("voice")
@_out_option
@_quick_option
def voice(out: Path | None, quick: bool) -> None:
    """Measure the voice pipeline, served by processes of its own on a free port."""
    from antiphon.bench.voice import QUICK, Effort, VoiceBench

    bench = VoiceBench(QUICK if quick else Effort(), say=_say)
    _show(bench.run(), "antiphon bench voice", out)


@command.command("hf-text")
@_out_option
@_quick_option
def hf_text(out: Path | None, quick: bool) -> None:
    """Measure the autoregressive engine against transformers on the same weights, in this process."""
    from antiphon.bench.hf_text import QUICK, Effort, HfTextBench

    bench = HfTextBench(QUICK if quick else Effort(), say=_say)
    _show(bench.run(), "antiphon bench hf-text", out)


@command.command("chaos")
@click.argument("pipeline", default="sim-voice")
@click.option("--seconds", type=click.FloatRange(min=20), default=60.0, show_default=True, help="About how long.")
@click.option("--seed", type=int, default=1, show_default=True, help="Decides every action and its time.")
@click.option(
    "--rate", type=click.FloatRange(min=0.1), default=12.0, show_default=True, help="Requests a second, and bursts."
)
@click.option("--out", type=_FILE, help="Write plan, events and ledger as JSON.")
def chaos(pipeline: str, seconds: float, seed: int, rate: float, out: Path | None) -> None:
    """Ask, abort, hang up, kill, join and drain at random, then count: PIPELINE must come through without a trace."""
    from antiphon.bench.chaos.run import as_json, run_chaos, shown

    report = run_chaos(pipeline, seconds, seed, rate, say=_say)
    for line in shown(report.ledger.lines()):
        click.echo(line)
    if out is not None:
        out.write_bytes(as_json(report))
        click.echo(f"written to {out}")
    if not report.ledger.is_clean:
        click.echo(f"error: seed {seed}: the ledger is not clean; the servers' log is {report.log}", err=True)
        sys.exit(1)


@command.command("clients")
@click.argument("pipeline", default="sim-qwen3-omni")
@click.option("--num-clients", type=click.IntRange(min=2), default=200, show_default=True, help="Streams at once.")
@click.option("--leaving", type=float, default=0.2, show_default=True, help="Share that vanishes at a random point.")
@click.option("--slow", type=float, default=0.1, show_default=True, help="Share that reads slowly.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="With and without these.")
@click.option("--seed", type=int, default=0, show_default=True, help="Decides who does what, and every question.")
@click.option("--task", type=click.Choice(["chat", "chat-audio", "speech"]), default="chat", show_default=True)
@click.option("--input-tokens", default="20", show_default=True, metavar="N|LOW:HIGH", help="Words of a question.")
@click.option("--output-tokens", default="200:400", show_default=True, metavar="N|LOW:HIGH", help="Of an answer.")
@click.option("--set", "assignments", multiple=True, metavar="PATH=VALUE", help="One setting. Repeatable.")
@click.option("--max-lag", type=float, default=0.02, show_default=True, help="Most seconds the load generator is late.")
@_out_option
def clients(pipeline: str, out: Path | None, **options: Any) -> None:
    """Measure what clients that vanish or read slowly cost those that do not, and what they leave behind."""
    from antiphon.bench.clients.crowd import Shares
    from antiphon.bench.clients.report import as_json, lines, rows
    from antiphon.bench.clients.run import CrowdSettings, run_clients
    from antiphon.bench.serve.dataset import TokenRange
    from antiphon.bench.serve.messages import Task
    from antiphon.bench.serve.report import write_json

    settings = CrowdSettings(
        num_clients=options["num_clients"],
        shares=Shares(options["leaving"], options["slow"]),
        num_rounds=options["rounds"],
        seed=options["seed"],
        task=Task(options["task"]),
        input_tokens=TokenRange.parse(options["input_tokens"]),
        output_tokens=TokenRange.parse(options["output_tokens"]),
        server=options["assignments"],
        max_lag_s=options["max_lag"],
    )
    report = run_clients(pipeline, settings, say=_say)
    _print_rows(rows(report), "antiphon bench clients")
    for line in lines(report):
        click.echo(line)
    if out is not None:
        write_json(as_json(report), out)
        click.echo(f"written to {out}")
    if not report.is_clean:
        click.echo(f"error: seed {settings.seed}: not all went well; the server's log is {report.log}", err=True)
        sys.exit(1)


@command.command("monitor")
@click.option("--rate", default=1000, help="Requests per second.", show_default=True)
@click.option("--rounds", default=10, help="Seconds of traffic with and without the monitor.", show_default=True)
def monitor(rate: int, rounds: int) -> None:
    """Measure what the orchestrator's monitor costs, under control traffic alone."""
    from antiphon.bench.monitor import MonitorBench

    cost = MonitorBench(requests_per_s=rate, rounds=rounds, say=_say).run()
    click.echo(f"CPU of the loop per second of {rate} requests: {1e3 * cost.loop_off_s:.1f} ms without the monitor,")
    click.echo(f"  {1e3 * cost.loop_on_s:.1f} ms with it, and {1e3 * cost.writer_s:.2f} ms of its writing thread")
    click.echo(f"measured: {100 * cost.measured_share:+.1f} % (medians of {rounds} rounds each, taking turns)")
    parts = f"{cost.turns_per_s:.0f} turns of {1e6 * cost.turn_s:.2f} us, a window of {1e6 * cost.window_s:.0f} us"
    click.echo(f"counted: {100 * cost.counted_share:.2f} % ({parts}, and the writing thread)")


@command.command("lanes")
@click.option("--only", default="", help="Parts to measure, e.g. a,d; all if left out.")
@_out_option
@click.option("--quick", is_flag=True, help="One short round of each, and only what a goal is about.")
def lanes(only: str, out: Path | None, quick: bool) -> None:
    """Measure the lanes alone, with emitting stages for models, against bare sockets, memcpy and bare uvicorn.

    \b
    a  outputs/s to per-request consumers     d  the shm connector between two processes
    b  one busy replica beside 11 idle ones   e  the orchestrator
    c  three trivial stages                   f  text deltas over HTTP
    """
    from antiphon.bench.lanes.effort import QUICK, Effort
    from antiphon.bench.lanes.run import parse_parts, run_lanes

    lanes_report = run_lanes(parse_parts(only), QUICK if quick else Effort(), say=_say)
    _show(lanes_report.report, "antiphon bench lanes", out)
    for problem in lanes_report.problems:
        click.echo(f"error: {problem}", err=True)
    if lanes_report.problems:
        sys.exit(1)


def _say(line: str) -> None:
    click.echo(f"{line} ...", err=True)


def _show(report: "Report", title: str, out: Path | None) -> None:
    from antiphon.bench.report import write_json

    _print_rows(report.rows, title)
    if out is not None:
        write_json(report, out)
        click.echo(f"written to {out}")


def _print_rows(rows: "Iterable[Row]", title: str) -> None:
    from rich.console import Console

    from antiphon.bench.report import as_table

    console = Console() if sys.stdout.isatty() else Console(width=_FILE_WIDTH)
    console.print(as_table(rows, title))
