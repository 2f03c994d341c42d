"""What a chaos run does and when, decided before it starts: a pure function of the seed.

In: a seed, a duration, the stages. Out: a Plan of episodes, each a server of its own, with requests, kills, freezes,
joins and drains at given times. Does not know: processes, sockets, what becomes of the actions.
"""

import random
from enum import StrEnum

import msgspec

_WARM_UP_S = 4.0
_ROUND_S = 16.0
_ROUND_OVERHEAD_S = 5.0
_SHORT_S = 4.0
_SHORT_OVERHEAD_S = 5.0
_SHARE_OF_LONG_EPISODE = 0.6
_BURSTS_PER_S = 0.15
_BURST_S = (0.7, 3.3)  # of requests at the usual rate, all at once
_HITS_PER_S = 0.35
_MEMBERSHIP_PER_S = 0.25
_MAX_PICK = 1 << 16


class Form(StrEnum):
    """What is asked for, and in which shape the answer comes; the library gives messages, whatever the shape."""

    CHAT = "chat"
    CHAT_EVENTS = "chat events"
    SPOKEN_CHAT = "spoken chat"
    SPOKEN_CHAT_EVENTS = "spoken chat events"
    SPEECH_BYTES = "speech bytes"
    SPEECH_EVENTS = "speech events"

    @property
    def is_chat(self) -> bool:
        """False for a speech."""
        return self not in (Form.SPEECH_BYTES, Form.SPEECH_EVENTS)

    @property
    def has_audio(self) -> bool:
        """True if audio is asked for."""
        return self not in (Form.CHAT, Form.CHAT_EVENTS)

    @property
    def is_streamed(self) -> bool:
        """True if the answer comes in pieces."""
        return self not in (Form.CHAT, Form.SPOKEN_CHAT)


class Door(StrEnum):
    """How a request comes in: an api-server, or an engine client in the process that asks."""

    HTTP = "http"
    LIBRARY = "library"


class Manner(StrEnum):
    """What the client does with its answer. It leaves by a reset, or (the library) by closing its stream."""

    READ = "reads it"
    PAUSE = "stops reading for a while"
    LEAVE = "leaves in the middle"
    LEAVE_AT_ONCE = "leaves before the answer"
    LEAVE_WHILE_SENDING = "leaves before its request is complete"


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """One request of `num_chars` characters. `at_bytes` of the answer say where it pauses or leaves."""

    at_s: float
    number: int
    door: Door
    form: Form
    manner: Manner
    num_chars: int
    at_bytes: int = 0
    pause_s: float = 0.0
    fault: str = ""
    """A command of the simulated pipeline: where the stage's code raises or its process ends."""


class How(StrEnum):
    """What befalls a process. TERM only an api-server: to a replica it is a Drain. FREEZE: SIGCONT a while later."""

    KILL = "SIGKILL"
    TERM = "SIGTERM"
    FREEZE = "SIGSTOP"


class Hit(msgspec.Struct, frozen=True, tag="hit"):
    """A signal to one process of a kind: a stage's name, `api-server`, `orchestrator`, `launcher` or `join`.

    `pick` chooses among those that live then, modulo their number.
    """

    at_s: float
    kind: str
    pick: int
    how: How
    for_s: float = 0.0


class Join(msgspec.Struct, frozen=True, tag="join"):
    """One more replica of `stage`."""

    at_s: float
    stage: str


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """One replica of `stage` is taken out, picked as in Hit, if others stay: by command or by SIGTERM."""

    at_s: float
    stage: str
    pick: int
    by_signal: bool


Action = Ask | Hit | Join | Drain


class Round(msgspec.Struct, frozen=True):
    """Actions in order of their times, in seconds from the round's start; after them everything comes to rest."""

    duration_s: float
    actions: tuple[Action, ...]


class Ending(StrEnum):
    """How a server is brought to its end, with requests in flight."""

    TERM = "SIGTERM to the launcher"
    TERM_TWICE = "SIGTERM twice"
    KILL_LAUNCHER = "SIGKILL to the launcher"
    KILL_ORCHESTRATOR = "SIGKILL to the orchestrator"
    KILL_ALL = "SIGKILL to every process"


class Episode(msgspec.Struct, frozen=True):
    """One server. Between its rounds it is checked at rest; the ending cuts the last round off."""

    rounds: tuple[Round, ...]
    ending: Ending


class Plan(msgspec.Struct, frozen=True):
    """The whole run."""

    seed: int
    seconds: float
    rate: float
    episodes: tuple[Episode, ...]


def make_plan(seconds: float, seed: int, rate: float, stages: tuple[str, ...], faults: tuple[str, ...]) -> Plan:
    """The run of about `seconds` in all, starts and rests included; `rate` requests a second, and bursts.

    One long episode takes most of it; short ones, each with another ending, take the rest. `faults` are the commands
    that the pipeline understands.
    """
    maker = _Maker(random.Random(seed), rate, stages, faults)
    num_rounds = max(1, round((seconds * _SHARE_OF_LONG_EPISODE - _WARM_UP_S) / (_ROUND_S + _ROUND_OVERHEAD_S)))
    long_s = _WARM_UP_S + num_rounds * (_ROUND_S + _ROUND_OVERHEAD_S)
    num_short = max(1, round((seconds - long_s) / (_SHORT_S + _SHORT_OVERHEAD_S)))
    endings = maker.endings(1 + num_short)
    warm_up = maker.quiet_round(_WARM_UP_S)
    rounds = tuple(maker.round(_ROUND_S) for _ in range(num_rounds))
    episodes = [Episode((warm_up, *rounds, maker.quiet_round(1.0)), endings[0])]
    episodes += [Episode((maker.round(_SHORT_S),), ending) for ending in endings[1:]]
    return Plan(seed, seconds, rate, tuple(episodes))


class _Maker:
    """Owns the generator of random numbers and the count of requests."""

    def __init__(self, rng: random.Random, rate: float, stages: tuple[str, ...], faults: tuple[str, ...]) -> None:
        self._rng = rng
        self._rate = rate
        self._stages = stages
        self._faults = faults
        self._num_asks = 0

    def endings(self, count: int) -> list[Ending]:
        """`count` endings: TERM first, then every kind in turn."""
        others = [ending for ending in Ending if ending is not Ending.TERM]
        found = [Ending.TERM]
        while len(found) < count:
            self._rng.shuffle(others)
            found += [*others, Ending.TERM]
        return found[:count]

    def quiet_round(self, duration_s: float) -> Round:
        """Requests alone."""
        return Round(duration_s, tuple(sorted(self._asks(duration_s), key=_time)))

    def round(self, duration_s: float) -> Round:
        """Requests, bursts of them, and whatever befalls processes."""
        actions: list[Action] = [*self._asks(duration_s)]
        actions += [self._hit(at_s) for at_s in self._times(duration_s, _HITS_PER_S)]
        for at_s in self._times(duration_s, _MEMBERSHIP_PER_S):
            actions.append(self._join_or_drain(at_s))
        return Round(duration_s, tuple(sorted(actions, key=_time)))

    def _asks(self, duration_s: float) -> list[Ask]:
        times_s = self._times(duration_s, self._rate)
        for at_s in self._times(duration_s, _BURSTS_PER_S):
            times_s += [at_s] * round(self._rng.uniform(*_BURST_S) * self._rate)
        return [self._ask(at_s) for at_s in times_s]

    def _times(self, duration_s: float, rate: float) -> list[float]:
        """A Poisson process."""
        times_s, at_s = [], self._rng.expovariate(rate)
        while at_s < duration_s:
            times_s.append(round(at_s, 3))
            at_s += self._rng.expovariate(rate)
        return times_s

    def _ask(self, at_s: float) -> Ask:
        rng = self._rng
        self._num_asks += 1
        manners = rng.choices(list(Manner), weights=(60, 8, 20, 8, 4))
        num_chars = rng.randint(1_000, 6_000) if rng.random() < 0.08 else rng.randint(12, 400)
        form = rng.choice(list(Form))
        return Ask(
            at_s=at_s,
            number=self._num_asks,
            door=Door.LIBRARY if rng.random() < 0.3 else Door.HTTP,
            form=form,
            manner=manners[0],
            num_chars=num_chars,
            at_bytes=int(rng.random() * num_chars * (128 if form.has_audio else 2)),
            pause_s=round(rng.uniform(0.2, 2.5), 3),
            fault=rng.choice(self._faults) if self._faults and rng.random() < 0.02 else "",
        )

    def _hit(self, at_s: float) -> Hit:
        rng = self._rng
        how = rng.choices(list(How), weights=(60, 10, 30))[0]
        kinds = {
            How.KILL: [*self._stages, "api-server", "join"],
            How.TERM: ["api-server"],
            How.FREEZE: [*self._stages, "api-server", "orchestrator", "launcher"],
        }[how]
        return Hit(at_s, rng.choice(kinds), rng.randrange(_MAX_PICK), how, round(rng.uniform(0.1, 1.5), 3))

    def _join_or_drain(self, at_s: float) -> Join | Drain:
        rng = self._rng
        stage = rng.choice(self._stages)
        if rng.random() < 0.55:
            return Join(at_s, stage)
        return Drain(at_s, stage, rng.randrange(_MAX_PICK), by_signal=rng.random() < 0.5)


def text_of(ask: Ask) -> str:
    """The text of a request: words that no other request has in this order, `num_chars` characters after the fault."""
    rng = random.Random(ask.number)
    words = [f"Request {ask.number} says"]
    length = len(words[0])
    while length < ask.num_chars:
        words.append("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))))
        length += 1 + len(words[-1])
    text = " ".join(words)[: ask.num_chars]
    return f"{ask.fault}:{text}" if ask.fault else text


def _time(action: Action) -> float:
    return action.at_s
