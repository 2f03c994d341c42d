"""The requests that wait for a place, and whose turn it is: clients take turns, each with its oldest request.

In: requests, each of a client. Out: the next one; the newest one of whoever has most. Does not know: how many may run.
"""

from collections import OrderedDict
from collections.abc import Iterator

from antiphon.messages.control import SubmitRequest


class FairQueue:
    """Owns one line of requests per client. A request with n others of its client before it waits at most n + 1 rounds,
    in each of which every client has one turn, however many requests the others have.
    """

    def __init__(self) -> None:
        self._first: OrderedDict[str, SubmitRequest] = OrderedDict()
        self._lines: OrderedDict[str, OrderedDict[str, SubmitRequest]] = OrderedDict()
        """In the order of turns; no line is empty."""
        self._clients: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._first) + len(self._clients)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._first or request_id in self._clients

    def __iter__(self) -> Iterator[SubmitRequest]:
        yield from self._first.values()
        for line in self._lines.values():
            yield from line.values()

    def put(self, request: SubmitRequest) -> None:
        """At the end of its client's line; a client that has none yet gets the last turn."""
        self._lines.setdefault(request.client, OrderedDict())[request.request_id] = request
        self._clients[request.request_id] = request.client

    def put_first(self, request: SubmitRequest) -> None:
        """Before all others, whoever's turn it is, but behind those that were put first earlier."""
        self._first[request.request_id] = request

    def pop(self) -> SubmitRequest:
        """Take the request whose turn it is; its client has the last turn from now on. KeyError if there is none."""
        if self._first:
            return self._first.popitem(last=False)[1]
        client, line = self._lines.popitem(last=False)
        request_id, request = line.popitem(last=False)
        del self._clients[request_id]
        if line:
            self._lines[client] = line
        return request

    def remove(self, request_id: str) -> SubmitRequest | None:
        """Take out the request of that id; None if it does not wait."""
        if request_id in self._first:
            return self._first.pop(request_id)
        client = self._clients.pop(request_id, None)
        if client is None:
            return None
        line = self._lines[client]
        request = line.pop(request_id)
        if not line:
            del self._lines[client]
        return request

    def num_of(self, client: str) -> int:
        """How many requests of `client` are in its line."""
        return len(self._lines.get(client, ()))

    def longest(self) -> int:
        """How many requests are in the longest line."""
        return max(map(len, self._lines.values()), default=0)

    def pop_newest_of_longest(self) -> SubmitRequest:
        """Take the request that came last to the longest line. ValueError if no line has one."""
        line = max(self._lines.values(), key=len)
        request = self.remove(next(reversed(line)))
        assert request is not None
        return request
