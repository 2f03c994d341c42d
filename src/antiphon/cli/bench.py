"""`antiphon bench`: measure a pipeline against the same models called in process.

In: which pipeline, how thoroughly. Out: a table, and JSON. Does not know: how anything is measured.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from antiphon.bench.report import Report

_FILE_WIDTH = 140


@click.group("bench")
def command() -> None:
    """Measure latency and throughput of a pipeline."""


@command.command("voice")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Also write the figures to a JSON file.")
@click.option("--quick", is_flag=True, help="Fewer repetitions: a minute instead of several.")
def voice(out: Path | None, quick: bool) -> None:
    """Measure the voice pipeline, served by processes of its own on a free port."""
    from antiphon.bench.voice import QUICK, Effort, VoiceBench

    bench = VoiceBench(QUICK if quick else Effort(), say=_say)
    _show(bench.run(), "antiphon bench voice", out)


@command.command("hf-text")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Also write the figures to a JSON file.")
@click.option("--quick", is_flag=True, help="Fewer repetitions: a minute instead of several.")
def hf_text(out: Path | None, quick: bool) -> None:
    """Measure the autoregressive engine against transformers on the same weights, in this process."""
    from antiphon.bench.hf_text import QUICK, Effort, HfTextBench

    bench = HfTextBench(QUICK if quick else Effort(), say=_say)
    _show(bench.run(), "antiphon bench hf-text", out)


def _say(line: str) -> None:
    click.echo(f"{line} ...", err=True)


def _show(report: "Report", title: str, out: Path | None) -> None:
    from rich.console import Console

    from antiphon.bench.report import as_table, write_json

    console = Console() if sys.stdout.isatty() else Console(width=_FILE_WIDTH)
    console.print(as_table(report.rows, title))
    if out is not None:
        write_json(report, out)
        click.echo(f"written to {out}")
