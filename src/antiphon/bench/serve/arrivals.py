"""When the requests of a benchmark are due: Poisson, evenly spaced or in bursts; and how many may be open at once.

In: a Load. Out: due times in seconds. Does not know: what is asked, of whom, or when it is really sent.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from antiphon.errors import ConfigError


class Shape(StrEnum):
    """POISSON: gaps of a gamma distribution (burstiness 1: exponential). BURST: `burst_size` requests at a time."""

    POISSON = "poisson"
    CONSTANT = "constant"
    BURST = "burst"


@dataclass(frozen=True)
class Load:
    """How requests come. rate_rps: infinite for a closed loop, where the next one comes when an open one ends.

    burstiness: shape of the gamma distribution of the gaps; below 1 they come in clusters, far above 1 evenly.
    max_concurrency: most open requests, 0 for no limit.
    """

    rate_rps: float = math.inf
    shape: Shape = Shape.POISSON
    burstiness: float = 1.0
    burst_size: int = 8
    max_concurrency: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        problems = []
        if self.rate_rps <= 0:
            problems.append(f"--rate {self.rate_rps:g}: requests per second are above 0")
        if self.burstiness <= 0:
            problems.append(f"--burstiness {self.burstiness:g}: the shape of a gamma distribution is above 0")
        if self.burst_size < 1:
            problems.append(f"--burst-size {self.burst_size}: a burst has at least one request")
        if self.is_closed and self.max_concurrency < 1:
            problems.append("give --rate for an open loop, or --max-concurrency for a closed one")
        if problems:
            raise ConfigError(problems)

    @property
    def is_closed(self) -> bool:
        """True if nothing but max_concurrency holds a request back."""
        return math.isinf(self.rate_rps)


def due_times_s(load: Load, num_requests: int) -> list[float]:
    """[num_requests] ascending; the last one is due at exactly num_requests / rate, so that the mean rate is `rate`.

    0 for all requests of a closed loop. The same load gives the same times.
    """
    if load.is_closed or num_requests == 0:
        return [0.0] * num_requests
    gaps = np.cumsum(_gaps(load, num_requests))
    return [float(due_s) for due_s in gaps * (num_requests / load.rate_rps / gaps[-1])]


def _gaps(load: Load, num_requests: int) -> np.ndarray:
    """[num_requests], in units of the mean gap, before they are scaled to the exact rate."""
    match load.shape:
        case Shape.POISSON:
            return np.random.default_rng(load.seed).gamma(load.burstiness, 1 / load.burstiness, num_requests)
        case Shape.CONSTANT:
            return np.ones(num_requests)
        case Shape.BURST:
            starts = np.arange(num_requests) % load.burst_size == 0
            return np.where(starts, float(load.burst_size), 0.0)
