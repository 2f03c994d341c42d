"""Which of the requests whose replica has died start again, and when: one at a time, as one of them may be the cause.

In: requests that start again, what becomes of them, the time. Out: those that may start now.
Does not know: admission, replicas, sockets.
"""

import math

from antiphon.messages.control import SubmitRequest

_SLOWER = 1.5
"""What a start may take in comparison with the one before, and `_LONGER_S` more."""
_LONGER_S = 0.2


class Quarantine:
    """Owns the requests that wait for their next start, and which one is on trial: the last that was let go alone.

    A trial lasts until the request is over, or has run for longer than the start that ended with its replica's death;
    a death in it is that request's doing, and acquits the others. They are let go together then, and also when trials
    have taken `max_s` (0: at once). First come those that had run shortest: what kills does so soon, as a rule.
    """

    def __init__(self, max_s: float) -> None:
        self._max_s = max_s
        self._waiting: dict[str, SubmitRequest] = {}
        self._on_trial: SubmitRequest | None = None
        self._trial_ends_s = math.inf
        self._ends_s = math.inf

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    @property
    def due_s(self) -> float:
        """When `take` may have something to give, if nothing happens before."""
        return min(self._trial_ends_s, self._ends_s) if self._waiting else math.inf

    def put(self, submit: SubmitRequest, now_s: float) -> None:
        """It is to start again. If nobody waits or is tried any more, a death has come anew, and so has its time."""
        if not self._waiting and (self._on_trial is None or now_s >= self._trial_ends_s):
            self._forget()
        self._waiting[submit.request_id] = submit

    def take(self, now_s: float) -> list[SubmitRequest]:
        """Those that may start now."""
        if not self._max_s or now_s >= self._ends_s:
            return self._let_all_go()
        is_tried = self._on_trial is not None and now_s < self._trial_ends_s
        if is_tried or not self._waiting:
            return []
        first = min(self._waiting.values(), key=lambda submit: submit.ran_s)
        del self._waiting[first.request_id]
        self._on_trial, self._trial_ends_s = first, math.inf
        return [first]

    def begins(self, request_id: str, now_s: float) -> None:
        """A request is bound: from here on its trial counts, if it is on one."""
        if self.is_on_trial(request_id):
            assert self._on_trial is not None
            self._trial_ends_s = now_s + self._on_trial.ran_s * _SLOWER + _LONGER_S
            self._ends_s = min(self._ends_s, now_s + self._max_s)

    def is_on_trial(self, request_id: str) -> bool:
        """True if no other request has been let go after it, and it is not over."""
        return self._on_trial is not None and self._on_trial.request_id == request_id

    def over(self, request_id: str) -> None:
        """The request has ended, in whatever way but its replica's death."""
        if not self.is_on_trial(request_id):
            return
        self._on_trial, self._trial_ends_s = None, -math.inf
        if not self._waiting:
            self._forget()

    def convict(self) -> None:
        """The replica of the request on trial has died: the others are let go at the next `take`."""
        self._on_trial = None
        if self._waiting:
            self._ends_s = -math.inf
        else:
            self._forget()

    def withdraw(self, request_id: str) -> SubmitRequest | None:
        """Take a waiting request out and give it; None if it is not here."""
        return self._waiting.pop(request_id, None)

    def withdraw_all_of(self, api_server: str) -> None:
        """Drop the requests of an api-server that has gone."""
        waiting = self._waiting.items()
        self._waiting = {name: submit for name, submit in waiting if submit.api_server != api_server}
        if self._on_trial is not None and self._on_trial.api_server == api_server:
            self.over(self._on_trial.request_id)

    def _let_all_go(self) -> list[SubmitRequest]:
        all_of_them = list(self._waiting.values())
        self._waiting.clear()
        self._forget()
        return all_of_them

    def _forget(self) -> None:
        self._on_trial, self._trial_ends_s, self._ends_s = None, math.inf, math.inf
