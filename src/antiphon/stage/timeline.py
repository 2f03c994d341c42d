"""When a request passed through one stage: the moments between which its time has gone.

In: moments, from the stage's loop and its engine. Out: a value that metrics and traces read. Does not know: either.
"""

import time
from dataclasses import dataclass, field


@dataclass
class Timeline:
    """Monotonic seconds; 0.0 = not yet. Each moment is set once."""

    bound_s: float = field(default_factory=time.monotonic)
    input_started_s: float = 0.0
    first_step_s: float = 0.0
    first_output_s: float = 0.0
    done_s: float = 0.0

    def step(self, began_s: float) -> None:
        """The engine computes something of the request, since `began_s`."""
        self.first_step_s = self.first_step_s or began_s

    @property
    def queue_s(self) -> float | None:
        """From the start of its input to its first step; None before that."""
        return self.first_step_s - self.input_started_s if self.first_step_s else None
