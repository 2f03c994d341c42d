"""A request's time in one stage as spans: wait for its input, queue, prefill and decode (or generate), hand-off.

In: StageRequests that block, go on and are released. Out: spans. Does not know: files, other processes.
"""

import time

from antiphon.config.pipeline import EngineKind
from antiphon.monitor.trace import Trace
from antiphon.stage.request import StageRequest


class StageSpans:
    """Owns since when which request waits for credit."""

    def __init__(self, trace: Trace, engine: EngineKind) -> None:
        self._trace = trace
        self._has_prefill = engine is not EngineKind.GENERATION
        self._blocked_since_s: dict[str, float] = {}

    def blocked(self, request_id: str, is_blocked: bool) -> None:
        """From now on, the request waits (or waits no more) until an edge has room for its rows."""
        now_s = time.monotonic()
        since_s = self._blocked_since_s.pop(request_id, 0.0)
        self._trace.add(request_id, "wait for credit", since_s, now_s)
        if is_blocked:
            self._blocked_since_s[request_id] = now_s

    def released(self, request: StageRequest) -> None:
        """Nothing holds anything of the request any more."""
        request_id, times, now_s = request.request_id, request.timeline, time.monotonic()
        if request_id in self._blocked_since_s:
            self.blocked(request_id, False)
        done_s = times.done_s or now_s
        self._trace.add(request_id, "wait for input", times.bound_s, times.input_started_s or done_s)
        self._trace.add(request_id, "queue", times.input_started_s, times.first_step_s or done_s)
        if self._has_prefill:
            self._trace.add(request_id, "prefill", times.first_step_s, times.first_output_s or done_s)
            self._trace.add(request_id, "decode", times.first_output_s, done_s)
        else:
            self._trace.add(request_id, "generate", times.first_step_s, done_s)
        self._trace.add(request_id, "hand-off", done_s, now_s)
