"""Memory that two processes of one user share without a name: a memfd, opened through /proc/<pid>/fd.

In: a size; or the identity of a peer's arena. Out: a writable mapping; or a read-only one of the peer's.
Does not know: what lies in the memory. Nothing of it outlives the processes that map it.
"""

import fcntl
import mmap
import os
import secrets
import select
from contextlib import ExitStack

import msgspec

from antiphon.connector.arena import ALIGNMENT_BYTES
from antiphon.errors import ReplicaDiedError, StageError

PREFIX_BYTES = ALIGNMENT_BYTES
"""The token's place in front of the arena."""
_TOKEN_BYTES = 16
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class ArenaIdentity(msgspec.Struct, frozen=True, array_like=True):
    """Where a producer's memfd is found, and how to know that it is the one meant."""

    pid: int
    fd: int
    size_bytes: int
    token: bytes


class OwnArena:
    """Owns this process's memfd and its writable mapping, from `startup` to `close`."""

    def __init__(self, arena_bytes: int) -> None:
        self._size_bytes = PREFIX_BYTES + arena_bytes
        self._identity: ArenaIdentity | None = None
        self._mapping: mmap.mmap | None = None

    @property
    def identity(self) -> ArenaIdentity:
        """What a peer needs in order to map it."""
        if self._identity is None:
            raise RuntimeError("the arena is used before startup() or after close()")
        return self._identity

    @property
    def mapping(self) -> mmap.mmap:
        """The memory: PREFIX_BYTES, then the arena."""
        if self._mapping is None:
            raise RuntimeError("the arena is used before startup() or after close()")
        return self._mapping

    def startup(self) -> None:
        """Create the memfd, sealed so that a peer's mapping can never lose its pages; an OSError leaves none."""
        with ExitStack() as opened:
            fd = os.memfd_create("antiphon-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            opened.callback(os.close, fd)
            os.ftruncate(fd, self._size_bytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            mapping = mmap.mmap(fd, self._size_bytes)
            opened.pop_all()
        token = secrets.token_bytes(_TOKEN_BYTES)
        mapping[:_TOKEN_BYTES] = token
        self._mapping, self._identity = mapping, ArenaIdentity(os.getpid(), fd, self._size_bytes, token)

    def close(self) -> None:
        """Let go of it; peers that have mapped it keep what they see."""
        if self._identity is not None:
            os.close(self._identity.fd)
            self._identity = self._mapping = None


class PeerArenas:
    """Owns one read-only mapping per producer. Views keep a mapping alive after it was forgotten."""

    def __init__(self) -> None:
        self._opened: dict[str, tuple[ArenaIdentity, mmap.mmap]] = {}

    def open(self, peer: str, identity: ArenaIdentity) -> mmap.mmap:
        """The mapping of `peer`'s arena; ReplicaDiedError if its process has ended, StageError if it is another."""
        known = self._opened.get(peer)
        if known is not None and known[0] == identity:
            return known[1]
        mapping = _map(peer, identity)
        self._opened[peer] = (identity, mapping)
        return mapping

    def forget(self, peer: str) -> None:
        """Drop the mapping of a peer that is gone."""
        self._opened.pop(peer, None)

    def close(self) -> None:
        """Drop every mapping."""
        self._opened.clear()


def _map(peer: str, identity: ArenaIdentity) -> mmap.mmap:
    path = f"/proc/{identity.pid}/fd/{identity.fd}"
    try:
        # Non-blocking: the number may have been recycled for a pipe, which would block an open.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
            if not sealed or os.fstat(fd).st_size != identity.size_bytes:
                raise StageError(f"{path} is not the arena of {peer}: seal or size differs; did {peer} restart?")
            mapping = mmap.mmap(fd, identity.size_bytes, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)
    except (OSError, ValueError, OverflowError) as error:
        if _has_ended(identity.pid):
            raise ReplicaDiedError(f"the process behind {peer} ended before its chunk was read") from error
        raise StageError(f"cannot map the arena of {peer} at {path}: {error}; see that process's log") from error
    if mapping[:_TOKEN_BYTES] != identity.token:
        raise StageError(f"{path} is not the arena of {peer}: its token differs; did {peer} restart?")
    return mapping


def _has_ended(pid: int) -> bool:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # no number of a process
        return False
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        return bool(poller.poll(0))
    finally:
        os.close(pidfd)
