"""`antiphon monitor`: files of the orchestrator's monitor, converted, told in words, drawn.

In: a columnar file, or the JSON-lines file of a run that was killed. Out: text, JSON, a picture.
Does not know: how figures are measured or judged.
"""

import time
from pathlib import Path

import click

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUT = click.Path(dir_okay=False, path_type=Path)


@click.group("monitor")
def command() -> None:
    """Read files of `antiphon serve --enable-orch-monitor`."""


@command.command("convert")
@click.argument("lines", type=_FILE, metavar="FILE.jsonl")
@click.option("-o", "--out", type=_OUT, help="The columnar file; default beside FILE, ending in .json.")
def convert_lines(lines: Path, out: Path | None) -> None:
    """Make the columnar file of a run that was killed from its lines."""
    from antiphon.errors import ConfigError
    from antiphon.monitor.columns import convert
    from antiphon.monitor.summary import summary_lines

    target = out or lines.with_suffix(".json")
    if target == lines:
        raise ConfigError([f"{lines} would be written over itself; give another file with -o"])
    try:
        spool = convert(lines, target)
    except OSError as error:
        raise ConfigError([f"{target} could not be written: {error}"]) from error
    for line in summary_lines(spool):
        click.echo(line)
    spool.close()
    click.echo(f"written to {target}")


@command.command("show")
@click.argument("file", type=_FILE)
def show(file: Path) -> None:
    """Tell what FILE says: sums, the verdict, and what held the server up since when."""
    from antiphon.monitor.columns import read_columns
    from antiphon.monitor.summary import stretches_of, summary_lines, verdict_on

    columns = read_columns(file)
    for line in summary_lines(columns):
        click.echo(line)
    for stretch in stretches_of(columns):
        click.echo(f"{_clock(stretch.began_unix_s)} to {_clock(stretch.ended_unix_s)}  {stretch.verdict}")
    click.echo(f"verdict: {verdict_on(columns)}")


@command.command("plot")
@click.argument("file", type=_FILE)
@click.option("-o", "--out", type=_OUT, required=True, help="The picture: .png, .svg or .html.")
def plot(file: Path, out: Path) -> None:
    """Draw FILE: loop, queues and requests per replica, edges, on one time axis. Needs matplotlib (extra `plot`)."""
    from antiphon.monitor.columns import read_columns
    from antiphon.monitor.plot import write_plot

    write_plot(read_columns(file), out, title=file.name)
    click.echo(f"written to {out}")


def _clock(unix_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix_s))
