"""Connectors by the name an operator writes.

In: kind, address, arena size. Out: a Connector that is not started yet.
Does not know: who uses it.
"""

from antiphon.config.deploy import ConnectorKind
from antiphon.connector.base import Connector
from antiphon.connector.inproc import InprocConnector
from antiphon.connector.shm import ShmConnector
from antiphon.errors import ConfigError

KINDS = ("inproc", *ConnectorKind)
"""What an operator may choose, and the reference, whose peers are in one process."""


def make_connector(kind: str, address: str, arena_bytes: int, *, num_requests: int = 1) -> Connector:
    """The connector of that kind; ConfigError naming the valid kinds if there is none.

    num_requests: how many may put at once; half of the arena is divided into a window for each.
    """
    window_bytes = arena_bytes // (2 * num_requests) if num_requests > 1 else arena_bytes
    match kind:
        case "inproc":
            return InprocConnector(address, arena_bytes=arena_bytes, window_bytes=window_bytes)
        case ConnectorKind.SHM:
            return ShmConnector(address, arena_bytes=arena_bytes, window_bytes=window_bytes)
        case _:
            raise ConfigError([f"connector {kind!r} is unknown; use one of {', '.join(KINDS)}"])
