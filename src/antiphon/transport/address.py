"""One private run directory per server (mode 0700), and the addresses of the sockets inside it.

In: a parent directory and names. Out: `ipc://` addresses and file paths; directories of dead servers are removed.
Does not know: who connects, or what is sent.
"""

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from antiphon.errors import ConfigError

_MAX_PATH_BYTES = 100  # sockaddr_un allows 107
_IPC = "ipc://"
_PREFIX = "antiphon-"
_UNLOCKED_PREFIX = f".{_PREFIX}"  # being made: its owner has not locked it yet
_UNLOCKED_FOR_S = 60.0  # far longer than it takes to lock a directory that has been made
_LOCK_FILE = "lock"


class RunDirectory:
    """Owns the private directory that holds the files of one running server, and the lock that says that it lives."""

    def __init__(self, path: Path, lock_fd: int = -1) -> None:
        self.path = path
        self._lock_fd = lock_fd

    @classmethod
    def create(cls, parent: str | None = None) -> "RunDirectory":
        """Make a fresh directory that only this user can enter; remove this user's whose servers are dead.

        Its lock lasts as long as this process. It gets its name when it is locked, so no other server removes it.
        """
        home = Path(parent or tempfile.gettempdir())
        _sweep(home)
        try:
            return cls._make(home)
        except OSError as error:
            raise ConfigError(
                [f"cannot make a run directory in {home}: {error.strerror}; set ANTIPHON_RUNTIME_DIR to another"]
            ) from error

    @classmethod
    def _make(cls, home: Path) -> "RunDirectory":
        with ExitStack() as made:
            unlocked = Path(tempfile.mkdtemp(prefix=_UNLOCKED_PREFIX, dir=home))
            made.callback(shutil.rmtree, unlocked, ignore_errors=True)
            lock_fd = os.open(unlocked / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            made.callback(os.close, lock_fd)
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            directory = cls(unlocked.rename(unlocked.with_name(unlocked.name.removeprefix("."))), lock_fd)
            made.pop_all()
        return directory

    def address(self, name: str) -> str:
        """The address of the inlet called `name`, e.g. `talker/1.control`."""
        path = str(self.file(name, "sock"))
        if len(os.fsencode(path)) > _MAX_PATH_BYTES:
            raise ConfigError([f"socket path {path} is too long; set ANTIPHON_RUNTIME_DIR to a shorter directory"])
        return f"{_IPC}{path}"

    def file(self, name: str, ending: str) -> Path:
        """Where the file of a process is: `file("talker/1", "json")` is `.../talker.1.json`."""
        return self.path / f"{name.replace('/', '.')}.{ending}"

    def names(self, ending: str) -> list[str]:
        """Which processes have such a file, e.g. `["orchestrator", "talker/1"]`."""
        stems = sorted(path.name.removesuffix(f".{ending}") for path in self.path.glob(f"*.{ending}"))
        return ["/".join(stem.rsplit(".", 1)) for stem in stems]

    def remove_sockets(self, name: str) -> None:
        """Remove the socket files of every start of a process that does not live."""
        for path in self.path.glob(self.file(name, "*.sock").name):
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the directory with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def path_of(address: str) -> str:
    """The socket file of an address."""
    return address.removeprefix(_IPC)


def remove_socket(address: str) -> None:
    """Remove the socket file of a process that has ended; nobody else ever hears at its address."""
    Path(path_of(address)).unlink(missing_ok=True)


def _sweep(parent: Path) -> None:
    """Remove the directories of this user's servers that were killed, and whose cleaner was killed, too."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    found = [(path, flags) for path in parent.glob(f"{_PREFIX}*")]
    found += [(path, flags | os.O_CREAT) for path in parent.glob(f"{_UNLOCKED_PREFIX}*") if _is_stale(path)]
    for path, how in found:
        try:
            if path.lstat().st_uid != os.getuid():
                continue
            lock_fd = os.open(path / _LOCK_FILE, how, 0o600)
        except OSError:  # no run directory of ours, or gone by now
            continue
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:  # its server lives
            pass
        finally:
            os.close(lock_fd)


def _is_stale(path: Path) -> bool:
    try:
        return time.time() - path.lstat().st_mtime > _UNLOCKED_FOR_S
    except OSError:
        return False
