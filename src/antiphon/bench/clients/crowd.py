"""Who is in the crowd: clients that read as they should, that vanish, that read slowly. A pure function of the seed.

In: how many, which shares, a seed. Out: Guests. Does not know: what is asked, servers.
"""

import random
from dataclasses import dataclass
from enum import StrEnum

from antiphon.errors import ConfigError


class Manner(StrEnum):
    """What a client does with its answer."""

    READ = "reads"
    LEAVE = "vanishes"
    DAWDLE = "reads slowly"


@dataclass(frozen=True)
class Guest:
    """One client. leaves_at: when it vanishes, as a share of the time that a usual answer takes."""

    manner: Manner
    leaves_at: float = 0.0


@dataclass(frozen=True)
class Shares:
    """How many of a crowd vanish and read slowly, from 0 to 1; the others read as they should."""

    leaving: float = 0.2
    dawdling: float = 0.1

    def __post_init__(self) -> None:
        if min(self.leaving, self.dawdling) < 0 or self.leaving + self.dawdling >= 1:
            raise ConfigError([f"--leaving {self.leaving:g} --slow {self.dawdling:g}: together they are below 1"])


def make_crowd(num_clients: int, shares: Shares, seed: int) -> tuple[Guest, ...]:
    """[num_clients]; the same seed gives the same ones. At least one reads as it should."""
    rng = random.Random(seed)
    num_leaving, num_dawdling = (int(share * num_clients) for share in (shares.leaving, shares.dawdling))
    guests = [Guest(Manner.LEAVE, rng.random()) for _ in range(num_leaving)]
    guests += [Guest(Manner.DAWDLE)] * num_dawdling
    guests += [Guest(Manner.READ)] * (num_clients - len(guests))
    rng.shuffle(guests)
    return tuple(guests)
