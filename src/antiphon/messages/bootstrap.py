"""What the launcher writes for a child before it starts it: one JSON file in the run directory.

In: a resolved deployment and addresses. Out: a struct that the child reads. Does not know: sockets or models.
"""

from pathlib import Path

import msgspec

from antiphon.config.deploy import DeployConfig


class Bootstrap(msgspec.Struct, frozen=True):
    """Who the child is, the deployment it belongs to, and where it hears and speaks.

    pipeline: the reference that models.registry loads. listen_fd: an inherited listening socket, or -1.
    working_directory: what relative paths in `pipeline` and `config` start from; "" = where the child is started.
    is_traced: write spans of requests to a file in the run directory. api_key_digests: only an api-server is told.
    unhurried_address: where the orchestrator hears what has no hurry: it reads that when something else wakes it.
    """

    name: str
    pipeline: str
    config: DeployConfig
    run_directory: str
    orchestrator_address: str
    unhurried_address: str
    control_address: str
    connector_address: str = ""
    client_address: str = ""
    listen_fd: int = -1
    working_directory: str = ""
    is_traced: bool = False
    api_key_digests: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        """Write as JSON."""
        path.write_bytes(msgspec.json.encode(self))

    @staticmethod
    def read(path: str) -> "Bootstrap":
        """Read what `write` wrote."""
        return msgspec.json.decode(Path(path).read_bytes(), type=Bootstrap)
