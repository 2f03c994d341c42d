"""Watches the processes that have joined, by their kernel handles: their end is seen at once, however it came.

In: names and process ids. Out: whose processes have ended, and how. Does not know: requests, pools, who started them.
"""

import logging
import os
import select
import signal
from dataclasses import dataclass

from antiphon.ending import ending_of_other
from antiphon.transport.address import remove_socket

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EndedProcess:
    """Who has ended, and how: "SIGKILL", "exit code 3"."""

    name: str
    pid: int
    how: str


class ProcessWatch:
    """Owns one pidfd per watched process. A pidfd means one process, even when its id has been given to another."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[str, int]] = {}

    def fileno(self) -> int:
        """Readable when `ended` has something to give."""
        return self._epoll.fileno()

    def watch(self, name: str, pid: int) -> bool:
        """Watch the process from now on; False if it has ended already, or there is no descriptor for it (logged)."""
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        except OSError as error:
            log.error("%s cannot be watched, and so cannot join: %s; raise the limit (ulimit -n)", name, error.strerror)
            return False
        try:
            self._epoll.register(pidfd, select.EPOLLIN)
        except OSError:  # no memory, or too many watched by one user
            os.close(pidfd)
            raise
        self._watched[pidfd] = (name, pid)
        return True

    def ended(self) -> list[EndedProcess]:
        """The processes that have ended since the last call; they are not watched any more."""
        ended = []
        for pidfd, _ in self._epoll.poll(0):
            name, pid = self._watched[pidfd]
            ended.append(EndedProcess(name, pid, ending_of_other(pid, pidfd)))
            self._forget(pidfd)
        return ended

    def kill(self, name: str) -> None:
        """End the process called `name` at once; nothing if it is not watched."""
        for pidfd, (watched, _) in self._watched.items():
            if watched == name:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def remove_sockets(self, *addresses: str) -> None:
        """Remove what a process has left that has ended: the socket files at which it heard."""
        for address in addresses:
            remove_socket(address)

    def close(self) -> None:
        """Watch nothing any more."""
        for pidfd in list(self._watched):
            self._forget(pidfd)
        self._epoll.close()

    def _forget(self, pidfd: int) -> None:
        self._epoll.unregister(pidfd)
        os.close(pidfd)
        del self._watched[pidfd]
