"""`antiphon join`: adds a replica to a running server and stays with it, or takes a replica out.

In: the run directory of a server, a stage or a replica. Out: exit code 0 after a drain, 1 otherwise.
Does not know: requests.
"""

import os
import signal
from pathlib import Path
from types import FrameType

import click

from antiphon.config.resolve import Setting, parse_settings
from antiphon.launch.joiner import Joiner, RunningServer, drain
from antiphon.process import configure_logging, set_title

_WATCH_S = 0.2


@click.command("join")
@click.option("--to", "address", required=True, metavar="DIR", help="The server's run directory; `serve` logs it.")
@click.option("--stage", default="", help="Add a replica of this stage, until Ctrl-C or SIGTERM drains it.")
@click.option("--drain", "drained", default="", metavar="REPLICA", help="Take this replica out, e.g. talker/1.")
@click.option("--device", help="Device of the new replica (stages.STAGE.device).")
@click.option("--python", help="Interpreter of the new replica (stages.STAGE.python).")
@click.option("--set", "assignments", multiple=True, metavar="PATH=VALUE", help="Another key of stages.STAGE.")
def command(
    address: str, stage: str, drained: str, device: str | None, python: str | None, assignments: tuple[str, ...]
) -> None:
    """Add a replica to the running server at DIR, or take one out."""
    if bool(stage) == bool(drained):
        raise click.UsageError("give --stage STAGE to add a replica, or --drain STAGE/INDEX to take one out")
    if drained and (device or python or assignments):
        raise click.UsageError("--device, --python and --set are for --stage")
    configure_logging("join")
    server = RunningServer.find(address)
    try:
        if drained:
            drain(server, drained)
            click.echo(f"{drained} has left")
            return
        flags = [(f"stages.{stage}.device", device), (f"stages.{stage}.python", python and _absolute(python))]
        given = tuple(Setting(path, value, "command line") for path, value in flags if value)
        _join(Joiner(server, stage, (*parse_settings(assignments), *given)))
    finally:
        server.close()


def _join(joiner: Joiner) -> None:
    """Run the replica until it has been drained; AntiphonError if it cannot join, or ends in another way."""
    num_stops = 0

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal num_stops
        num_stops += 1

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        joiner.start()
        set_title(f"join {joiner.name}")
        while not num_stops and not joiner.poll_ready(_WATCH_S):
            pass
        if not num_stops:
            click.echo(f"{joiner.name} has joined")
        num_told = 0
        while not joiner.watch(_WATCH_S):
            while num_told < num_stops:
                joiner.drain()
                num_told += 1
        click.echo(f"{joiner.name} has left")
    finally:
        joiner.stop()


def _absolute(python: str) -> str:
    """A path as it is meant here; the replica starts in the server's directory. A bare command stays as it is."""
    return str(Path(python).absolute()) if os.sep in python else python
