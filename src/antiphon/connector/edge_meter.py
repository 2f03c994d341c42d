"""What one process has sent on one edge, over all requests.

In: chunks sent, whether one waits. Out: sums from the start. Does not know: connectors, requests, clocks.
"""

from dataclasses import dataclass


@dataclass
class EdgeMeter:
    """Owns the sums of one edge. wait_s: time in which at least one chunk waited for room."""

    num_chunks: int = 0
    num_rows: int = 0
    num_bytes: int = 0
    send_s: float = 0.0
    wait_s: float = 0.0
    _waiting_since_s: float | None = None

    def sent(self, num_rows: int, num_bytes: int, duration_s: float) -> None:
        """One chunk has left, after `duration_s` in the connector."""
        self.num_chunks += 1
        self.num_rows += num_rows
        self.num_bytes += num_bytes
        self.send_s += duration_s

    def note_waiting(self, is_waiting: bool, now_s: float) -> None:
        """Whether a chunk waits for room from now on."""
        if self._waiting_since_s is not None:
            self.wait_s += now_s - self._waiting_since_s
        self._waiting_since_s = now_s if is_waiting else None
