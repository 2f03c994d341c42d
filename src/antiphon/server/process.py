"""An api-server's process: an engine client and uvicorn on the launcher's listening socket, until SIGTERM.

In: a Bootstrap with an inherited listening socket. Out: HTTP. Does not know: routes (see app.py).
"""

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Iterator

import uvicorn
import uvloop

from antiphon.client.factory import make_engine_client
from antiphon.messages.bootstrap import Bootstrap
from antiphon.process import ChildProcess
from antiphon.server.app import create_app
from antiphon.server.connection import ConnectionConfig
from antiphon.server.drain import Drain
from antiphon.server.settings import ServerSettings

_FLUSH_S = 2
"""How long the last bytes of finished responses have to leave."""


class _Server(uvicorn.Server):
    """Leaves signals alone: the launcher's SIGTERM ends it, Ctrl-C is the launcher's business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handler."""
        yield


async def serve(bootstrap: Bootstrap, child: ChildProcess) -> None:
    """Serve until SIGTERM; open requests get `timeouts.drain_s` to finish, new ones a 503."""
    with child.reporting_failure():
        client = make_engine_client(bootstrap)
        await client.startup()
        drain, keys = Drain(), bootstrap.api_key_digests
        settings = ServerSettings.of(bootstrap.config, client.pipeline, keys)
        config = ConnectionConfig(create_app(client, settings, drain), settings.deploy)
        config.load()
        server = _Server(config)
        listener = socket.socket(fileno=bootstrap.listen_fd)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    gc.collect()
    gc.freeze()  # what start-up made lives as long as the process; the collector need not look at it again
    child.ready()
    await stopping.wait()
    await drain.finish(bootstrap.config.timeouts.drain_s, client.fail_all)
    config.timeout_graceful_shutdown = _FLUSH_S
    server.should_exit = True
    await serving
    await client.close()


def main(bootstrap: Bootstrap, child: ChildProcess) -> None:
    """Run as a child of the launcher."""
    uvloop.run(serve(bootstrap, child))
