"""How long a simulated step takes: it sleeps until a GPU would have been ready.

In: when a step began and how much is in it. Out: the time has passed. Does not know: what the step makes.
"""

import random
import time

from antiphon.models.simulated.profile import StepTime


class StepClock:
    """Owns the stream of the jitter; one of a seed and a replica's name is always the same."""

    def __init__(self, step: StepTime, *, seed: int, replica: str) -> None:
        self._step = step
        self._random = random.Random(f"{seed} {replica}")

    def sleep(self, began_s: float, num_sequences: int, num_more_tokens: int) -> None:
        """Return when the step is over; what was computed since `began_s` (perf_counter) is part of it."""
        duration_s = self._step.seconds(num_sequences, num_more_tokens)
        if self._step.jitter:
            duration_s *= 1 + self._random.uniform(-self._step.jitter, self._step.jitter)
        left_s = began_s + duration_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)
