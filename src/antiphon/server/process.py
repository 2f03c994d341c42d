"""An api-server's process: an engine client and uvicorn on the launcher's listening socket.

In: a Bootstrap with an inherited listening socket. Out: HTTP. Does not know: routes (see app.py).
"""

import asyncio
import logging
import signal
import socket

import uvicorn
import uvloop

from antiphon.client.factory import make_engine_client
from antiphon.messages.bootstrap import Bootstrap
from antiphon.process import ChildProcess
from antiphon.server.app import create_app
from antiphon.server.limits import ServerSettings

log = logging.getLogger(__name__)


async def serve(bootstrap: Bootstrap, child: ChildProcess) -> None:
    """Serve until SIGTERM; open requests get `timeouts.drain_s` to finish."""
    config = bootstrap.config
    with child.reporting_failure():
        client = make_engine_client(bootstrap)
        await client.startup()
        app = create_app(client, ServerSettings.from_deploy(config.server, client.pipeline))
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                loop="none",
                http="httptools",
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=int(config.timeouts.drain_s),
            )
        )
        listener = socket.socket(fileno=bootstrap.listen_fd)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: _stop(server))
    child.ready()
    await server.serve(sockets=[listener])
    await client.close()


def _stop(server: uvicorn.Server) -> None:
    server.should_exit = True


def main(bootstrap: Bootstrap, child: ChildProcess) -> None:
    """Run as a child of the launcher."""
    uvloop.run(serve(bootstrap, child))
