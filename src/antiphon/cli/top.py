"""`antiphon top`: what a server does now, as a table that renews itself, and what holds it up.

In: the URL of a server. Out: tables of its replicas and edges, a verdict. Does not know: how figures are made of pages.
"""

import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import click

from antiphon.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from antiphon.monitor.live import LiveView, Reading

_TIMEOUT_S = 5.0
_FILE_WIDTH = 140
_MIN_INTERVAL_S = 0.2


@click.command("top")
@click.argument("url", default="http://127.0.0.1:8000")
@click.option("--once", is_flag=True, help="Print the tables once and end.")
@click.option("--interval", default=2.0, type=click.FloatRange(min=_MIN_INTERVAL_S), help="Seconds between readings.")
def command(url: str, once: bool, interval: float) -> None:
    """Show what the server at URL (default: http://127.0.0.1:8000) does, and what holds it up."""
    from rich.console import Console
    from rich.live import Live

    from antiphon.monitor.live import live_view

    console = Console() if sys.stdout.isatty() else Console(width=_FILE_WIDTH)
    before = _read(url)
    time.sleep(interval)
    after = _read(url)
    if once:
        return console.print(picture(live_view(before, after)))
    try:
        with Live(picture(live_view(before, after)), console=console, auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(interval)
                before, after = after, _read(url)
                live.update(picture(live_view(before, after)), refresh=True)
    except KeyboardInterrupt:
        pass  # how one leaves it


def picture(view: "LiveView") -> "Group":
    """The tables, and the verdict above them."""
    from rich.console import Group
    from rich.text import Text

    from antiphon.monitor.verdict import verdict_of

    verdict = verdict_of(view.load)
    head = (
        f"{view.requests_inflight:.0f} requests run, {view.requests_queued:.0f} wait; orchestrator: loop busy "
        f"{100 * view.loop_busy:.0f} %, longest turn {1000 * view.loop_lag_s:.1f} ms"
    )
    style = "bold red" if verdict.bottleneck else "bold green"
    return Group(Text(str(verdict), style=style), Text(head), replica_table(view), edge_table(view))


def replica_table(view: "LiveView") -> "Table":
    """One row per replica."""
    from rich.table import Table

    table = Table(title="Stages")
    table.add_column("replica", no_wrap=True)
    for heading in ("running", "waiting", "busy", "steps/s", "makes", "waits for credit", "unread outputs", "oldest"):
        table.add_column(heading, justify="right")
    for each in view.replicas:
        table.add_row(
            each.replica,
            f"{each.running:.0f}/{each.slots:.0f}",
            f"{each.waiting:.0f}",
            f"{100 * each.step_busy:.0f} %",
            f"{each.steps_per_s:.0f}",
            f"{each.made_per_s:.1f} {each.made_unit}" if each.made_unit else "-",
            f"{100 * each.credit_wait:.0f} %",
            f"{each.outputs_queue:.0f}",
            f"{1000 * each.oldest_output_s:.0f} ms",
        )
    return table


def edge_table(view: "LiveView") -> "Table":
    """One row per edge and producing process."""
    from rich.table import Table

    table = Table(title="Edges")
    for heading in ("edge", "from"):
        table.add_column(heading, no_wrap=True)
    for heading in ("chunks/s", "MB/s", "waits for credit", "oldest unreleased"):
        table.add_column(heading, justify="right")
    for each in view.edges:
        table.add_row(
            each.edge,
            each.producer,
            f"{each.chunks_per_s:.0f}",
            f"{each.bytes_per_s / 1e6:.2f}",
            f"{100 * each.credit_wait:.0f} %",
            f"{1000 * each.oldest_unreleased_s:.0f} ms",
        )
    return table


def _read(url: str) -> "Reading":
    """The server's page now; ConfigError if there is none."""
    from antiphon.monitor.live import read_page

    page = f"{url if '://' in url else f'http://{url}'}/metrics".replace("//metrics", "/metrics")
    try:
        with urllib.request.urlopen(page, timeout=_TIMEOUT_S) as answer:
            reading = read_page(answer.read().decode(), time.monotonic())
    except urllib.error.HTTPError as error:
        raise ConfigError([f"{page} answers with {error.code}; give the URL of an antiphon server"]) from error
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise ConfigError([f"{page} does not answer: {reason}; give the URL of a running antiphon server"]) from error
    if not reading.values.get("uptime_seconds"):
        raise ConfigError([f"{page} has no metrics of antiphon; give the URL of an antiphon server"])
    return reading
