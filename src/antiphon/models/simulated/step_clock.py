"""How long a simulated step takes: it is over when a GPU would have been ready.

In: when a step began and how much is in it. Out: the moment of its end. Does not know: what the step makes, who waits.
"""

import random
import time

from antiphon.models.simulated.profile import StepTime


class StepClock:
    """Owns the stream of the jitter; one of a seed and a replica's name is always the same."""

    def __init__(self, step: StepTime, *, seed: int, replica: str) -> None:
        self._step = step
        self._random = random.Random(f"{seed} {replica}")

    def end_s(self, began_s: float, num_sequences: int, num_more_tokens: int) -> float:
        """When a step is over that began then (time.monotonic); what was computed since is part of it."""
        duration_s = self._step.seconds(num_sequences, num_more_tokens)
        if self._step.jitter:
            duration_s *= 1 + self._random.uniform(-self._step.jitter, self._step.jitter)
        return began_s + duration_s


def sleep_until(moment_s: float) -> None:
    """Return at that moment of time.monotonic, at once if it is over."""
    left_s = moment_s - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)
