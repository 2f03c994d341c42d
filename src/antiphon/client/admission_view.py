"""What this process knows of admission, so that it can refuse a request before it has read it.

In: the orchestrator's news, the requests that this process has submitted. Out: OverloadedError for a request that the
orchestrator would refuse, never for one that it would take. Does not know: HTTP, sockets.
"""

import time
from collections import defaultdict

from antiphon.messages.control import ADMISSION_NEWS_S, AdmissionNews


class AdmissionView:
    """Owns the last news and, for each client, how many of its requests this process has submitted that wait.

    The orchestrator decides: it counts the requests of all processes. What it has said counts until it says something
    else, and is forgotten when it is silent: a request too many then reaches it and is refused there.
    """

    def __init__(self) -> None:
        self._news: AdmissionNews | None = None
        self._heard_s = 0.0
        self._clients: dict[str, str] = {}
        self._num_waiting: defaultdict[str, int] = defaultdict(int)

    def hear(self, news: AdmissionNews) -> None:
        """Take in the orchestrator's word."""
        self._news, self._heard_s = news, time.monotonic()

    def submitted(self, request_id: str, client: str) -> None:
        """A request of `client` waits for its place from now on."""
        self._clients[request_id] = client
        self._num_waiting[client] += 1

    def settled(self, request_id: str) -> None:
        """It waits no more. Safe to call twice."""
        client = self._clients.pop(request_id, None)
        if client is not None:
            self._num_waiting[client] -= 1
            if not self._num_waiting[client]:
                del self._num_waiting[client]

    def check(self, client: str) -> None:
        """OverloadedError if one more request of `client` would get no place, as far as is known."""
        news = self._news
        if news is None or news.max_waiting is None or time.monotonic() - self._heard_s > ADMISSION_NEWS_S:
            return
        if self._num_waiting.get(client, 0) >= news.max_waiting:
            raise news.refusal()
