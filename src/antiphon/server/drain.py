"""The end of an api-server's work: no new request, time for the open ones, a clear word to those that get none.

In: every HTTP request and WebSocket, and once the order to drain. Out: those that run, or OverloadedError for their
client. Does not know: signals, processes, what the requests want.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.errors import AntiphonError, OverloadedError

_log = logging.getLogger(__name__)
_SERVED_TO_THE_END = frozenset({"/health", "/ready", "/metrics"})
_LAST_WORDS_S = 1.0
"""How long requests that are cut off have to tell their client."""


class Drain:
    """Owns the tasks of the open requests and WebSockets, and whether new ones are taken.

    begun: set once no new request is taken. A WebSocket that has nothing to do ends then, by `check`.
    """

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()
        self._cut_off: set[asyncio.Task[None]] = set()
        self._ends_s: float | None = None

    @property
    def is_draining(self) -> bool:
        """True once no new request is taken."""
        return self._ends_s is not None

    def num_open(self) -> int:
        """Requests that have begun and are not over."""
        return len(self._open)

    def check(self) -> None:
        """OverloadedError while draining; it gives the time until this server is gone."""
        if self._ends_s is not None:
            left_s = max(1.0, self._ends_s - time.monotonic())
            raise _shutting_down("this server is shutting down and takes no new request", left_s)

    async def run(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """`app` as one open request; OverloadedError if it is not taken, or is cut off."""
        self.check()
        task = asyncio.current_task()
        assert task is not None, "a request runs in a task"
        self._open.add(task)
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            if task not in self._cut_off:
                raise
            task.uncancel()
            raise _cut_off() from None
        finally:
            self._open.discard(task)
            self._cut_off.discard(task)

    async def finish(self, drain_s: float, fail_all: Callable[[AntiphonError], None]) -> None:
        """Take no new request; return when the open ones are over, at the latest 2 s after `drain_s`.

        What is open then is ended: first all streams by `fail_all`, so that outputs made before still reach their
        clients, then by cancelling what has not come to its end by that (an upload, a client that does not read).
        """
        self._ends_s = time.monotonic() + drain_s
        self.begun.set()
        if await self._is_idle_within(drain_s):
            return
        _log.warning("%d requests are cut off after timeouts.drain_s = %g s", len(self._open), drain_s)
        fail_all(_cut_off())
        if await self._is_idle_within(_LAST_WORDS_S):
            return
        self._cut_off |= self._open
        for task in self._open:
            task.cancel()
        await self._is_idle_within(_LAST_WORDS_S)

    async def _is_idle_within(self, time_s: float) -> bool:
        if self._open:
            await asyncio.wait(self._open, timeout=time_s)
        return not self._open


class DrainGate:
    """ASGI middleware in front of all work; what tells how the server is, is served to the end."""

    def __init__(self, app: ASGIApp, *, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in _SERVED_TO_THE_END:
            return await self._app(scope, receive, send)
        await self._drain.run(self._app, scope, receive, send)


def _cut_off() -> OverloadedError:
    return _shutting_down("this server is shutting down and could not finish the request in timeouts.drain_s", 1.0)


def _shutting_down(what: str, retry_after_s: float) -> OverloadedError:
    return OverloadedError(f"{what}; send it again", retry_after_s=retry_after_s, code="shutting_down")
