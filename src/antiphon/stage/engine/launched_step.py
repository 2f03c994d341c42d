"""A step between its launch and its end: the device works on it while the host does something else.

In: what a runner has begun. Out: what it made. Does not know: engines, devices, what a step is made of.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

Made = TypeVar("Made", covariant=True)


class LaunchedStep(Protocol[Made]):
    """What a device is working on."""

    def is_over(self) -> bool:
        """True if `collect` would not wait."""

    def collect(self) -> Sequence[Made]:
        """What the step made, in the order in which it was asked for. Called once; waits for the step's end."""


@dataclass(frozen=True)
class HostStep(LaunchedStep[Made]):
    """A step that the host has computed itself: it is over as soon as it is launched."""

    made: Sequence[Made]

    def is_over(self) -> bool:
        """Always."""
        return True

    def collect(self) -> Sequence[Made]:
        """What was computed at the launch."""
        return self.made
