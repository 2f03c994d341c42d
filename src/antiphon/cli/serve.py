"""`antiphon serve`: the launcher in the foreground, until SIGTERM or Ctrl-C.

In: a pipeline and settings. Out: a serving process tree; exit code 0 after a clean stop, 1 otherwise.
Does not know: HTTP routes or models.
"""

import ipaddress
import logging
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import click

from antiphon.cli.options import deployment_options, make_deployment, pipeline_argument
from antiphon.config.resolve import Deployment, Setting
from antiphon.errors import AntiphonError, ConfigError, ReplicaDiedError
from antiphon.launch.api_keys import read_key_digests
from antiphon.launch.launcher import Launcher
from antiphon.launch.open_files import open_files_warning
from antiphon.process import configure_logging, set_title

log = logging.getLogger(__name__)
_WATCH_S = 0.2
_BACKLOG = 2048


@click.command("serve")
@pipeline_argument
@deployment_options
@click.option("--host", help="Address to listen on (server.host).")
@click.option("--port", type=int, help="Port to listen on, 0 = any free one (server.port).")
@click.option(
    "--api-key",
    "api_keys",
    multiple=True,
    metavar="KEY",
    help="Ask clients for this key. Repeatable. Rather use --api-key-file or ANTIPHON_API_KEY: `ps` shows options.",
)
@click.option(
    "--api-key-file", metavar="FILE", help="Ask clients for one of these keys, one a line (server.api_key_file)."
)
@click.option("--api-servers", type=int, help="Number of api-server processes on the port (server.api_servers).")
@click.option("--drain-timeout", type=float, metavar="SECONDS", help="Time for open requests (timeouts.drain_s).")
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="At the end, write spans of every request to FILE (Chrome trace events; opens in Perfetto).",
)
@click.option("--enable-orch-monitor", is_flag=True, help="Write the orchestrator's load to a file (monitor.enabled).")
@click.option("--no-async-chunk", is_flag=True, help="Hand off whole results instead of streaming, on every edge.")
def command(
    pipeline: str,
    deploy_file: str,
    assignments: tuple[str, ...],
    host: str | None,
    port: int | None,
    api_keys: tuple[str, ...],
    api_key_file: str | None,
    api_servers: int | None,
    drain_timeout: float | None,
    trace: Path | None,
    enable_orch_monitor: bool,
    no_async_chunk: bool,
) -> None:
    """Serve PIPELINE (default: voice) over HTTP."""
    stop = StopSignals()
    stop.take_over()
    flags = {
        "server.host": host,
        "server.port": port,
        "server.api_key_file": api_key_file,
        "server.api_servers": api_servers,
        "timeouts.drain_s": drain_timeout,
        "monitor.enabled": enable_orch_monitor or None,
    }
    given = tuple(Setting(path, value, "command line") for path, value in flags.items() if value is not None)
    deployment = make_deployment(pipeline, deploy_file, assignments, given)
    if no_async_chunk:
        whole = tuple(Setting(f"edges.{e.name}.whole", True, "--no-async-chunk") for e in deployment.pipeline.edges)
        when = tuple(
            Setting(f"edges.{e.name}.start_when", "all_chunks", "--no-async-chunk") for e in deployment.pipeline.edges
        )
        deployment = make_deployment(pipeline, deploy_file, assignments, (*given, *whole, *when))
    serve(deployment, stop, api_keys, trace)


class StopSignals:
    """Owns what SIGTERM and SIGINT do. `hurry` is called at the second one: do not wait for open requests."""

    def __init__(self) -> None:
        self.is_told = False
        self.hurry: Callable[[], None] = lambda: None

    def take_over(self) -> None:
        """Note the signals from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_told:
            self.hurry()
        self.is_told = True


def serve(deployment: Deployment, stop: StopSignals, api_keys: tuple[str, ...] = (), trace: Path | None = None) -> None:
    """Run the server until it is told to stop; AntiphonError if it cannot start or cannot go on."""
    configure_logging("launcher")
    set_title(f"serve {deployment.pipeline.name}")
    digests = read_key_digests(api_keys, deployment.config.server.api_key_file)
    listener = _listen(deployment)
    if not digests and not _is_loopback(listener):
        log.warning("who reaches %s can use this server; see --api-key-file", deployment.config.server.host)
    if warning := open_files_warning(deployment.config):
        log.warning(warning)
    launcher = Launcher(deployment, listen_fd=listener.fileno(), api_key_digests=digests, trace=trace)
    stop.hurry = launcher.hurry
    try:
        _run(deployment, launcher, listener, stop)
    except AntiphonError:
        launcher.hurry()  # without all its processes no open request comes to its end
        if not stop.is_told:  # what dies because a signal reached the whole process group is no error
            raise
    finally:
        launcher.stop()
        listener.close()


def _run(deployment: Deployment, launcher: Launcher, listener: socket.socket, stop: StopSignals) -> None:
    if stop.is_told:
        return
    launcher.start()
    while not launcher.poll_ready(_WATCH_S):
        if stop.is_told:
            return
    _announce(deployment, listener)
    log.info("add a replica: antiphon join --stage STAGE --to %s", launcher.directory)
    while True:
        time.sleep(_WATCH_S)
        if stop.is_told:
            return
        problem = launcher.watch()
        if problem:
            raise ReplicaDiedError(problem)


def _listen(deployment: Deployment) -> socket.socket:
    """The listening socket that all api-servers share; taken first, so that a used port fails at once."""
    host, port = deployment.config.server.host, deployment.config.server.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) else "a port is at most 65535"
        raise ConfigError([f"cannot listen on {host}:{port}: {reason}; choose another with --port"]) from error
    listener.setblocking(False)
    return listener


def _is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def _announce(deployment: Deployment, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    name = deployment.pipeline.name
    hint = ""
    if any(task.name == "speech" for task in deployment.pipeline.tasks):
        body = f'\'{{"model":"{name}","input":"Hello there.","response_format":"wav"}}\''
        hint = f" -- try: curl {url}/v1/audio/speech -H 'Content-Type: application/json' -d {body} -o hello.wav"
    click.echo(f"{name} is served at {url}{hint}")
