"""What a run's records come to, under the names that other benchmarks of such models use.

In: Records, a Slo. Out: values of each metric, rates, whether the load generator was in the way.
Does not know: servers, tables.

Per answer, in seconds unless it says otherwise, from before its connection is made:

    ttft                first text                  audio_ttfp       first audio
    tpot                (last text - first text) / (output tokens - 1)
    itl                 each gap between two text deltas
    e2el                the end                     audio_duration   how long its audio sounds
    audio_rtf           last audio / audio_duration, no unit
    audio_underrun      how long, at most, a player that starts at the first piece is behind
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from antiphon.bench.measures import percentile
from antiphon.bench.serve.messages import Record, Result
from antiphon.errors import ConfigError, StageError

Values = dict[str, list[float]]
CONTINUITY_LIMIT_S = 0.1
_MAX_CPU_SHARE = 0.9
_LAG_PERCENT = 99


def ttft(record: Record) -> float | None:
    """None for an answer without text."""
    return record.text_s[0] - record.sent_s if record.text_s else None


def tpot(record: Record) -> float | None:
    """None for fewer than two tokens or deltas. Without the server's count, a delta is a token."""
    num_tokens = record.num_output_tokens or len(record.text_s)
    if len(record.text_s) < 2 or num_tokens < 2:
        return None
    return (record.text_s[-1] - record.text_s[0]) / (num_tokens - 1)


def e2el(record: Record) -> float | None:
    """Every answer has an end."""
    return record.end_s - record.sent_s


def audio_ttfp(record: Record) -> float | None:
    """None for an answer without audio."""
    return record.audio_s[0] - record.sent_s if record.audio_s else None


def audio_duration(record: Record) -> float | None:
    """None for an answer without audio."""
    return sum(record.audio_durations_s) if record.audio_s else None


def audio_rtf(record: Record) -> float | None:
    """None for an answer without audio."""
    duration_s = sum(record.audio_durations_s)
    return (record.audio_s[-1] - record.sent_s) / duration_s if duration_s else None


def audio_underrun(record: Record) -> float | None:
    """The latest piece, held against a player that began with the first and has never stopped; at least 0."""
    if not record.audio_s:
        return None
    worst_s, played_until_s = 0.0, record.audio_s[0]
    for came_s, duration_s in zip(record.audio_s, record.audio_durations_s, strict=True):
        worst_s = max(worst_s, came_s - played_until_s)
        played_until_s += duration_s
    return worst_s


PER_ANSWER: dict[str, Callable[[Record], float | None]] = {
    "ttft": ttft,
    "tpot": tpot,
    "e2el": e2el,
    "audio_ttfp": audio_ttfp,
    "audio_rtf": audio_rtf,
    "audio_duration": audio_duration,
    "audio_underrun": audio_underrun,
}
NO_UNIT = frozenset({"audio_rtf"})


@dataclass(frozen=True)
class Slo:
    """The most that an answer may take to count for goodput: metric -> limit, in the metric's unit."""

    limits: dict[str, float] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "Slo":
        """`ttft=0.5,e2el=10`; ConfigError for anything else, naming the metrics there are."""
        limits = {}
        for part in filter(None, text.split(",")):
            name, _, limit = part.partition("=")
            try:
                limits[name] = float(limit)
            except ValueError:
                raise ConfigError([f"--slo {part}: write metric=limit, as ttft=0.5"]) from None
        unknown = ", ".join(name for name in limits if name not in PER_ANSWER)
        if unknown:
            raise ConfigError([f"--slo: there is no metric {unknown}; there is {', '.join(PER_ANSWER)}"])
        return cls(limits)

    def is_met(self, record: Record) -> bool:
        """True for a right answer within every limit; one without the metric (no audio) is not within it."""
        if record.error or record.is_wrong:
            return False
        values = {name: PER_ANSWER[name](record) for name in self.limits}
        return all(value is not None and value <= self.limits[name] for name, value in values.items())


def values_of(records: Sequence[Record]) -> Values:
    """Metric -> one value per good answer that has it (itl: per gap), in the order of the requests."""
    good = sorted((record for record in records if not record.error), key=lambda record: record.number)
    values: Values = {}
    for name, metric in PER_ANSWER.items():
        found = [metric(record) for record in good]
        values[name] = [value for value in found if value is not None]
    gaps = (zip(record.text_s, record.text_s[1:], strict=False) for record in good)
    values["itl"] = [later_s - earlier_s for pairs in gaps for earlier_s, later_s in pairs]
    return {name: found for name, found in values.items() if found}


@dataclass(frozen=True)
class Totals:
    """What a run came to as a whole. goodput: None without an SLO; continuity: None without audio."""

    num_requests: int
    num_failed: int
    num_wrong: int
    duration_s: float
    request_throughput: float
    output_token_throughput: float
    audio_throughput: float
    goodput: float | None
    audio_continuity_ok_rate: float | None


def totals_of(records: Sequence[Record], slo: Slo) -> Totals:
    """Rates are of good answers, per second from the first request to the last end; StageError if there are none."""
    if not records:
        raise StageError("no request was sent; nothing is measured")
    good = [record for record in records if not record.error]
    duration_s = max(record.end_s for record in records) - min(record.sent_s for record in records)
    underruns = [value for value in map(audio_underrun, good) if value is not None]
    return Totals(
        num_requests=len(records),
        num_failed=len(records) - len(good),
        num_wrong=sum(record.is_wrong for record in good),
        duration_s=duration_s,
        request_throughput=len(good) / duration_s,
        output_token_throughput=sum(record.num_output_tokens for record in good) / duration_s,
        audio_throughput=sum(sum(record.audio_durations_s) for record in good) / duration_s,
        goodput=sum(map(slo.is_met, records)) / duration_s if slo.limits else None,
        audio_continuity_ok_rate=(
            sum(value <= CONTINUITY_LIMIT_S for value in underruns) / len(underruns) if underruns else None
        ),
    )


@dataclass(frozen=True)
class Lateness:
    """How much the load generator itself was in the way: 99th percentiles in seconds, its share of one core."""

    send_lag_s: float
    loop_lag_s: float
    cpu_share: float

    @classmethod
    def of(cls, result: Result) -> "Lateness":
        """A request's lag is from when it could have been sent until it was."""
        send_lags = [record.sent_s - record.ready_s for record in result.records]
        return cls(
            percentile(send_lags or [0.0], _LAG_PERCENT),
            percentile(result.loop_lags_s or [0.0], _LAG_PERCENT),
            result.cpu_s / result.wall_s if result.wall_s else 0.0,
        )

    def problem(self, max_lag_s: float) -> str:
        """Why the run says nothing about the server; "" if it does."""
        figures = (
            f"it sent {self.send_lag_s * 1000:.1f} ms late and read {self.loop_lag_s * 1000:.1f} ms late (p99, limit "
            f"{max_lag_s * 1000:g} ms), and used {self.cpu_share:.0%} of a core (limit {_MAX_CPU_SHARE:.0%})"
        )
        if max(self.send_lag_s, self.loop_lag_s) <= max_lag_s and self.cpu_share <= _MAX_CPU_SHARE:
            return ""
        return (
            f"the load generator was the bottleneck, so the figures are not the server's: {figures}; "
            "lower the rate, give the machine more cores, or raise --max-lag"
        )
