"""A report of any size as control messages: sent in parts that each fit, put together where they arrive.

In: a process's counters, or parts as they come. Out: parts, or whole StatsReports. Does not know: what is counted.
"""

from collections.abc import Iterator

import msgspec

from antiphon.messages.control import MAX_MESSAGE_BYTES, Counter, StatsReport

_MAX_PART_BYTES = MAX_MESSAGE_BYTES // 2
_ENCODER = msgspec.msgpack.Encoder()


def parts_of(source: str, counters: tuple[Counter, ...]) -> tuple[StatsReport, ...]:
    """The report of `source` in as few halvings as let each part fit a control message; one part if it is small."""
    pieces = tuple(_pieces(source, counters))
    return tuple(StatsReport(source, piece, number, len(pieces)) for number, piece in enumerate(pieces))


def _pieces(source: str, counters: tuple[Counter, ...]) -> Iterator[tuple[Counter, ...]]:
    if len(counters) < 2 or len(_ENCODER.encode(StatsReport(source, counters))) <= _MAX_PART_BYTES:
        yield counters
        return
    middle = len(counters) // 2
    yield from _pieces(source, counters[:middle])
    yield from _pieces(source, counters[middle:])


class ReportGatherer:
    """Owns, of each process, the parts of a report whose last part has not come. They come in order."""

    def __init__(self) -> None:
        self._parts: dict[str, list[StatsReport]] = {}

    def take(self, part: StatsReport) -> StatsReport | None:
        """The whole report if `part` completes it. One of which a part is missing is dropped: the next one follows."""
        if part.num_parts == 1:
            return part
        parts = self._parts.pop(part.source, []) if part.number else []
        if part.number != len(parts):
            return None
        parts.append(part)
        if len(parts) < part.num_parts:
            self._parts[part.source] = parts
            return None
        return StatsReport(part.source, tuple(counter for each in parts for counter in each.counters))

    def forget(self, source: str) -> None:
        """The process has gone: what it has not said to the end never comes."""
        self._parts.pop(source, None)
