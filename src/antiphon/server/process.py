"""An api-server's process: an engine client and uvicorn on the launcher's listening socket.

In: a Bootstrap with an inherited listening socket. Out: HTTP. Does not know: routes (see app.py).
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator

import uvicorn
import uvloop

from antiphon.client.factory import make_engine_client
from antiphon.messages.bootstrap import Bootstrap
from antiphon.process import ChildProcess
from antiphon.server.app import create_app
from antiphon.server.limits import ServerSettings


class _Server(uvicorn.Server):
    """Leaves signals alone: the launcher's SIGTERM ends it, Ctrl-C is the launcher's business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handler."""
        yield


async def serve(bootstrap: Bootstrap, child: ChildProcess) -> None:
    """Serve until SIGTERM; open requests get `timeouts.drain_s` to finish."""
    config = bootstrap.config
    with child.reporting_failure():
        client = make_engine_client(bootstrap)
        await client.startup()
        app = create_app(client, ServerSettings.from_deploy(config.server, client.pipeline))
        uvicorn_config = uvicorn.Config(
            app,
            loop="none",
            http="httptools",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=int(config.timeouts.drain_s),
        )
        uvicorn_config.load()
        server = _Server(uvicorn_config)
        listener = socket.socket(fileno=bootstrap.listen_fd)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: _stop(server))
    child.ready()
    await server.serve(sockets=[listener])
    await client.close()


def _stop(server: uvicorn.Server) -> None:
    server.should_exit = True


def main(bootstrap: Bootstrap, child: ChildProcess) -> None:
    """Run as a child of the launcher."""
    uvloop.run(serve(bootstrap, child))
