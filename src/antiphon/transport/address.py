"""Addresses of sockets inside one private run directory (mode 0700).

In: a run directory and names. Out: `ipc://` addresses, one socket file per inlet.
Does not know: who connects, or what is sent.
"""

import os
import shutil
import tempfile
from pathlib import Path

from antiphon.errors import ConfigError

_MAX_PATH_BYTES = 100  # sockaddr_un allows 107; zmq needs a few


class RunDirectory:
    """Owns the private directory that holds the socket files of one running server."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, parent: str | None = None) -> "RunDirectory":
        """Make a fresh directory that only this user can enter."""
        return cls(Path(tempfile.mkdtemp(prefix="antiphon-", dir=parent)))

    def address(self, name: str) -> str:
        """The address of the inlet called `name`, e.g. `talker/1.control`."""
        path = str(self.path / f"{name.replace('/', '.')}.sock")
        if len(os.fsencode(path)) > _MAX_PATH_BYTES:
            raise ConfigError([f"socket path {path} is too long; set ANTIPHON_RUNTIME_DIR to a shorter directory"])
        return f"ipc://{path}"

    def remove(self) -> None:
        """Delete the directory and every socket file in it."""
        shutil.rmtree(self.path, ignore_errors=True)
