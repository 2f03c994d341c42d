"""The picture of a monitor's file: loop, stages and edges in rows of small panels over one time axis.

In: Columns. Out: a PNG, an SVG, or an HTML page that needs no network. Needs matplotlib (the extra `plot`).
Does not know: verdicts.
"""

import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.errors import ConfigError
from antiphon.monitor.columns import Columns
from antiphon.monitor.summary import load_of
from antiphon.monitor.verdict import stages_in_order
from antiphon.monitor.windows import parts_of_key

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_POINTS = 600
_MAX_LINES = 12
_STALLED = 2.0  # a window is drawn as stalled from so many times its configured length on
_LONG_S = 6 * 3600.0
_COLUMNS = 3
_PANEL_WIDTH, _PANEL_HEIGHT, _LEGEND_WIDTH = 4.6, 1.7, 1.9  # inches
_COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
    "#000000", "#7f3c8d", "#80ba5a", "#a5aa99", "#b97c7b", "#3969ac",
)  # fmt: skip


@dataclass(frozen=True)
class _Line:
    """One line of a panel. values: one per point."""

    label: str
    values: list[float]
    colour: str
    style: str = "-"


class _Points:
    """Windows taken together to at most 600 points; `ended` is each point's time on the axis."""

    def __init__(self, columns: Columns) -> None:
        num_windows = columns.num_windows
        edges = sorted({round(index * num_windows / _MAX_POINTS) for index in range(_MAX_POINTS + 1)})
        self._columns = columns
        self._ranges = list(pairwise(edges))
        self._durations_s = self._sums("windows", "", "duration_s")
        ended_s = columns.column("windows", "", "ended_unix_s")
        self.ended = [datetime.fromtimestamp(ended_s[last - 1]) for _, last in self._ranges]

    def rate(self, group: str, key: str, name: str, scale: float = 1.0) -> list[float]:
        """Sum per second."""
        sums = self._sums(group, key, name)
        return [scale * part / (seconds or 1.0) for part, seconds in zip(sums, self._durations_s, strict=True)]

    def most(self, group: str, key: str, name: str, scale: float = 1.0) -> list[float]:
        """The largest value."""
        column = self._columns.column(group, key, name)
        return [scale * max(column[first:last]) for first, last in self._ranges]

    def stalled(self) -> list[tuple[datetime, datetime]]:
        """From when to when the loop stood still."""
        columns = self._columns
        durations_s, ended_s = columns.windows["duration_s"], columns.column("windows", "", "ended_unix_s")
        return [
            (datetime.fromtimestamp(ended - seconds), datetime.fromtimestamp(ended))
            for seconds, ended in zip(durations_s, ended_s, strict=True)
            if seconds > _STALLED * columns.configured_window_s
        ]

    def _sums(self, group: str, key: str, name: str) -> list[float]:
        column = self._columns.column(group, key, name)
        return [sum(column[first:last]) for first, last in self._ranges]


def write_plot(columns: Columns, out: Path, *, title: str) -> None:
    """Draw into `out`; its ending says what it is. ConfigError: no matplotlib, another ending, nothing to draw."""
    try:
        from matplotlib import rc_context
    except ImportError as error:
        raise ConfigError(
            ["pictures need matplotlib; in antiphon's checkout, run: pip install -e '.[plot]'"]
        ) from error
    if out.suffix not in (".png", ".svg", ".html"):
        raise ConfigError([f"{out}: a picture ends in .png, .svg or .html"])
    if not columns.num_windows:
        raise ConfigError([f"{title} has no window to draw"])
    with rc_context({"svg.hashsalt": "antiphon", "font.size": 8.0, "axes.titlesize": 8.5}):
        figure = _figure(columns, title)
        try:
            if out.suffix == ".png":
                figure.savefig(out, dpi=110)
                return
            svg = io.StringIO()
            figure.savefig(svg, format="svg")
            out.write_text(svg.getvalue() if out.suffix == ".svg" else _page(svg.getvalue(), title), encoding="utf-8")
        except OSError as error:
            raise ConfigError([f"{out} could not be written: {error}"]) from error


def _page(svg: str, title: str) -> str:
    """One HTML page with the picture in it."""
    picture = svg[svg.index("<svg") :]
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>svg{{max-width:100%;height:auto}}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{picture}</body></html>\n'


def _figure(columns: Columns, title: str) -> "Figure":
    """A row for the loop, one per stage, one for the edges; the legend of a row is right of it."""
    from matplotlib.figure import Figure

    points = _Points(columns)
    stages = stages_in_order(load_of(columns, []))
    num_rows = 1 + len(stages) + bool(columns.edges)
    width = _COLUMNS * _PANEL_WIDTH + _LEGEND_WIDTH
    figure = Figure(figsize=(width, num_rows * (_PANEL_HEIGHT + 0.55) + 0.7), layout="constrained")
    grid = figure.subplots(
        num_rows, _COLUMNS + 1, sharex="col", squeeze=False, width_ratios=[*[_PANEL_WIDTH] * _COLUMNS, _LEGEND_WIDTH]
    )
    _draw_loop(grid[0], points)
    for row, stage in enumerate(stages, start=1):
        _draw_stage(grid[row], points, columns, stage)
    if columns.edges:
        _draw_edges(grid[-1], points, columns)
    began = points.ended[0].strftime("%Y-%m-%d %H:%M")
    duration_s = sum(columns.windows["duration_s"])
    heading = f"{title}: {began}, {duration_s:.0f} s in {columns.num_windows} windows"
    if points.stalled():
        heading += "; shaded: the loop stood still"
    figure.suptitle(heading, x=0.01, horizontalalignment="left")
    return figure


def _draw_loop(panels: "Sequence[Axes]", points: _Points) -> None:
    def line(label: str, name: str, colour: int, scale: float = 1.0) -> _Line:
        return _Line(label, points.rate("windows", "", name, scale), _COLOURS[colour])

    turns = [line("active turns", "loop_active", 0), line("idle turns", "loop_idle", 9)]
    busy = [line("busy", "busy_s", 1, 100.0), line("late", "late_s", 4, 100.0)]
    inflight = _Line("requests in flight", points.most("windows", "", "requests_inflight"), _COLOURS[2])
    waiting = _Line("requests waiting", points.most("windows", "", "requests_waiting_max"), _COLOURS[3])
    _draw(panels[0], points, "orchestrator: turns of the loop per second", turns)
    _draw(panels[1], points, "orchestrator: loop busy and late, % of the time", busy, top=100.0)
    _draw(panels[2], points, "requests: in flight, waiting for admission", [inflight, waiting])
    _legend(panels[3], [*turns, *busy, inflight, waiting])


def _draw_stage(panels: "Sequence[Axes]", points: _Points, columns: Columns, stage: str) -> None:
    keys = sorted((key for key in columns.replicas if parts_of_key(key)[0] == stage), key=_index)

    def lines(values: list[list[float]], style: str = "-", suffix: str = "") -> list[_Line]:
        names = [f"{'/'.join(parts_of_key(key))}{suffix}" for key in keys]
        return _few(stage, [_Line(*each, style) for each in zip(names, values, _colours(len(keys)), strict=True)])

    inflight = lines([points.most("replicas", key, "inflight_max") for key in keys])
    waiting = lines([points.most("replicas", key, "waiting") for key in keys], ":", " waiting")
    busy = lines([points.rate("replicas", key, "step_busy_s", 100.0) for key in keys])
    credit = lines([points.rate("replicas", key, "credit_wait_s", 100.0) for key in keys], ":", " waiting for credit")
    queue = lines([points.most("replicas", key, "outputs_queue_max") for key in keys])
    _draw(panels[0], points, f"{stage}: requests in flight (dotted: waiting for a slot)", [*inflight, *waiting])
    _draw(
        panels[1], points, f"{stage}: in steps (dotted: waiting for credit), % of the time", [*busy, *credit], top=100.0
    )
    _draw(panels[2], points, f"{stage}: output queue, messages", queue)
    _legend(panels[3], inflight)


def _draw_edges(panels: "Sequence[Axes]", points: _Points, columns: Columns) -> None:
    """All replicas of an edge together: their traffic in sum, of fill and age the worst."""
    names = list(dict.fromkeys(parts_of_key(key)[0] for key in columns.edges))
    traffic, fill, age = [], [], []
    for name, colour in zip(names, _colours(len(names)), strict=True):
        keys = [key for key in columns.edges if parts_of_key(key)[0] == name]
        rates = [points.rate("edges", key, "bytes", 1e-6) for key in keys]
        fills = [points.most("edges", key, "arena_fill_max", 100.0) for key in keys]
        ages = [points.most("edges", key, "oldest_unreleased_s") for key in keys]
        traffic.append(_Line(name, [sum(each) for each in zip(*rates, strict=True)], colour))
        fill.append(_Line(name, [max(each) for each in zip(*fills, strict=True)], colour))
        age.append(_Line(name, [max(each) for each in zip(*ages, strict=True)], colour))
    _draw(panels[0], points, "edges: MB/s", traffic)
    _draw(panels[1], points, "edges: fill of the producer's arena, %", fill, top=100.0)
    _draw(panels[2], points, "edges: oldest chunk not released, s", age)
    _legend(panels[3], traffic)


def _draw(panel: "Axes", points: _Points, title: str, lines: Sequence[_Line], top: float = 0.0) -> None:
    from matplotlib.dates import AutoDateLocator, DateFormatter

    for began, ended in points.stalled():
        panel.axvspan(began, ended, color="#d00000", alpha=0.15, linewidth=0)
    for line in lines:
        marker = "." if len(line.values) == 1 else ""
        panel.plot(points.ended, line.values, color=line.colour, linestyle=line.style, linewidth=1.0, marker=marker)
    most = max((value for line in lines for value in line.values), default=0.0)
    panel.set_ylim(0.0, max(1.05 * most, top or 1e-9, 1.0 if not most else 0.0))
    panel.set_title(title, loc="left")
    panel.grid(alpha=0.3, linewidth=0.5)
    panel.spines[["top", "right"]].set_visible(False)
    span_s = (points.ended[-1] - points.ended[0]).total_seconds()
    panel.xaxis.set_major_locator(AutoDateLocator(minticks=3, maxticks=6))
    panel.xaxis.set_major_formatter(DateFormatter("%H:%M:%S" if span_s < _LONG_S else "%m-%d %H:%M"))
    panel.tick_params(labelbottom=True)


def _legend(panel: "Axes", lines: Sequence[_Line]) -> None:
    """What the colours of a row mean, in the place right of it."""
    from matplotlib.lines import Line2D

    panel.set_axis_off()
    handles = [Line2D([], [], color=line.colour, linestyle=line.style, label=line.label) for line in lines]
    panel.legend(handles=handles, loc="center left", frameon=False, borderaxespad=0.0, fontsize=7.5, labelspacing=0.25)


def _few(stage: str, lines: list[_Line]) -> list[_Line]:
    """At most 12 lines; of more replicas, only the highest, the middle and the lowest at each point."""
    if len(lines) <= _MAX_LINES:
        return lines
    points = [sorted(each) for each in zip(*(line.values for line in lines), strict=True)]
    wanted = (("highest", -1, 1), ("middle", len(lines) // 2, 0), ("lowest", 0, 9))
    return [
        _Line(f"{name} of {len(lines)} {stage}", [each[at] for each in points], _COLOURS[colour], lines[0].style)
        for name, at, colour in wanted
    ]


def _colours(count: int) -> list[str]:
    return [_COLOURS[index % len(_COLOURS)] for index in range(count)]


def _index(key: str) -> tuple[int, str]:
    index = parts_of_key(key)[1]
    return (int(index) if index.isdigit() else 0, index)
