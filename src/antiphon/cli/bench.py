"""`antiphon bench`: measure a pipeline against the same models called in process.

In: which pipeline, how thoroughly. Out: a table, and JSON. Does not know: how anything is measured.
"""

import sys
from pathlib import Path

import click

_FILE_WIDTH = 140


@click.group("bench")
def command() -> None:
    """Measure latency and throughput of a pipeline."""


@command.command("voice")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Also write the figures to a JSON file.")
@click.option("--quick", is_flag=True, help="Fewer repetitions: a minute instead of several.")
def voice(out: Path | None, quick: bool) -> None:
    """Measure the voice pipeline, served by processes of its own on a free port."""
    from rich.console import Console

    from antiphon.bench.report import as_table, write_json
    from antiphon.bench.voice import QUICK, Effort, VoiceBench

    console = Console() if sys.stdout.isatty() else Console(width=_FILE_WIDTH)
    bench = VoiceBench(QUICK if quick else Effort(), say=lambda line: click.echo(f"{line} ...", err=True))
    report = bench.run()
    console.print(as_table(report.rows, "antiphon bench voice"))
    if out is not None:
        write_json(report, out)
        click.echo(f"written to {out}")
