"""The picture of a sweep: time to first output against request rate, as PNG and as one HTML file with an SVG in it.

In: Points, capacities. Out: files. Does not know: how the figures came about.
"""

import html
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.bench.sweep import Point
from antiphon.errors import ConfigError

_COLOURS = ("#1f6f8b", "#d1603d", "#6a8d3f", "#7d4f9e", "#a07f1f", "#4d4d4d")
_IDEAL = "#222222"
_NAMES = {"ttft": "time to first text", "audio_ttfp": "time to first audio", "e2el": "time to the end"}


@dataclass(frozen=True)
class Chart:
    """What is drawn. points: of every arm, rates ascending. capacities_rps: stage -> where it is full."""

    title: str
    metric: str
    points: Sequence[Point]
    capacities_rps: dict[str, float]

    @property
    def arms(self) -> list[str]:
        """In the order of the points."""
        return list(dict.fromkeys(point.arm for point in self.points))

    def of(self, arm: str) -> list[Point]:
        """The points of one arm that have been measured."""
        return [point for point in self.points if point.arm == arm and point.mean_s]


def write_chart(chart: Chart, path: Path) -> list[Path]:
    """Write PATH.png and PATH.html; ConfigError if matplotlib is not installed."""
    figure = _draw(chart)
    png, page = path.with_suffix(".png"), path.with_suffix(".html")
    figure.savefig(png, dpi=144)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    svg = buffer.getvalue()
    page.write_text(_page(chart, svg[svg.index("<svg") :]), encoding="utf-8")
    return [png, page]


def _draw(chart: Chart) -> Any:
    """A matplotlib Figure: the means on the left, the p99s on the right, if there are any."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            [f"charts need matplotlib ({error}); in antiphon's checkout, run: pip install -e '.[plot]'"]
        ) from error
    figure = Figure(figsize=(12, 5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle("\n".join(filter(None, (chart.title, costs_line(chart.points)))), fontsize=11)
    panels = {
        "mean": [(point.mean_s, point.ideal_mean_s) for point in chart.points],
        "p99": [(point.p99_s, point.ideal_p99_s) for point in chart.points],
    }
    drawn = {which: figures for which, figures in panels.items() if any(measured for measured, _ in figures)}
    rows = figure.subplots(1, max(1, len(drawn)), sharex=True, squeeze=False)
    for axes, (which, figures) in zip(rows[0], drawn.items(), strict=False):
        _panel(axes, chart, which, figures)
    handles, labels = rows[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=max(1, len(labels)), frameon=False, fontsize=9)
    return figure


def _panel(axes: Any, chart: Chart, which: str, figures: list[tuple[list[float], list[float]]]) -> None:
    for number, arm in enumerate(chart.arms):
        colour = _COLOURS[number % len(_COLOURS)]
        found = [(p.rate_rps, *f) for p, f in zip(chart.points, figures, strict=True) if p.arm == arm]
        measured = [(rate, values) for rate, values, _ in found if values]
        rates = [rate for rate, _ in measured]
        axes.plot(rates, [statistics.fmean(v) for _, v in measured], "o-", color=colour, label=arm, markersize=4)
        axes.fill_between(rates, [min(v) for _, v in measured], [max(v) for _, v in measured], color=colour, alpha=0.2)
        ideal = [(rate, statistics.fmean(values)) for rate, _, values in found if values]
        if ideal and number == 0:
            axes.plot(*zip(*ideal, strict=True), "--", color=_IDEAL, label="ideal", linewidth=1.2)
    axes.set_yscale("log")
    axes.set_xlabel("requests per second")
    axes.set_ylabel(f"{which} {_NAMES.get(chart.metric, chart.metric)}, s")
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "235" else "")
    _mark_capacities(axes, chart)


def _mark_capacities(axes: Any, chart: Chart) -> None:
    """A line where each stage is full; those far beyond the rates are left out."""
    highest = max(point.rate_rps for point in chart.points)
    near = sorted((rps, stage) for stage, rps in chart.capacities_rps.items() if rps <= 1.5 * highest)
    for rps, stage in near:
        axes.axvline(rps, color="#888888", linestyle=":", linewidth=1)
        text = f"{stage} full"
        axes.text(rps, 0.98, text, rotation=90, va="top", ha="right", fontsize=8, transform=axes.get_xaxis_transform())
    axes.set_xlim(0, 1.05 * max([highest, *(rps for rps, _ in near)]))


def _page(chart: Chart, svg: str) -> str:
    rows = "\n".join(_row(point) for point in chart.points)
    heads = (
        "arm",
        "req/s",
        "mean, s",
        "p99, s",
        "spread",
        "ideal mean, s",
        "measured / ideal",
        "repeats",
        "CPU ms / request",
        "client KB / request",
        "remarks",
    )
    cells = "".join(f"<th>{head}</th>" for head in heads)
    full = ", ".join(f"{html.escape(stage)} {rps:.3g}/s" for stage, rps in chart.capacities_rps.items())
    full = f" Stages are full at: {full}." if full else ""
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(chart.title)}</title><style>
body {{ font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1100px; color: #222 }}
svg {{ width: 100%; height: auto }}
table {{ border-collapse: collapse }} td, th {{ padding: 3px 12px; text-align: right; border-bottom: 1px solid #ddd }}
td:first-child, th:first-child, td:last-child, th:last-child {{ text-align: left }}
</style></head><body>
{svg}
<p>Lines are the mean of the repeats, bands reach from the lowest to the highest.{full}</p>
<table><tr>{cells}</tr>
{rows}
</table></body></html>
"""


def _row(point: Point) -> str:
    cells = [html.escape(point.arm), f"{point.rate_rps:g}", *figures_of(point), html.escape("; ".join(point.problems))]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def costs_line(points: Sequence[Point]) -> str:
    """What the arms cost at the highest rate that all of them were measured at; "" if there is none, or one arm."""
    arms = {point.arm for point in points}
    by_rate: dict[float, list[Point]] = {}
    for point in points:
        if point.cpu_s:
            by_rate.setdefault(point.rate_rps, []).append(point)
    common = [rate for rate, found in by_rate.items() if len(found) == len(arms)]
    if len(arms) < 2 or not common:
        return ""
    costs = [
        f"{point.arm} {_cpu_ms(point)} ms of CPU, {_client_kb(point)} KB to clients" for point in by_rate[max(common)]
    ]
    return f"per request at {max(common):g}/s: {'; '.join(costs)}"


def _cpu_ms(point: Point) -> str:
    return f"{statistics.fmean(point.cpu_s) * 1000:.1f}" if point.cpu_s else "-"


def _client_kb(point: Point) -> str:
    return f"{statistics.fmean(point.client_bytes) / 1000:,.0f}" if point.client_bytes else "-"


def figures_of(point: Point) -> list[str]:
    """mean, p99, spread, the ideal's mean, measured / ideal, repeats, CPU ms and client KB per request: as text."""
    return [
        f"{statistics.fmean(point.mean_s):.3f}" if point.mean_s else "-",
        f"{statistics.fmean(point.p99_s):.3f}" if point.p99_s else "-",
        f"{point.spread:.1%}" if point.spread is not None else "-",
        f"{statistics.fmean(point.ideal_mean_s):.3f}" if point.ideal_mean_s else "-",
        f"{point.ratio:.3f}" if point.ratio is not None else "-",
        str(len(point.mean_s)),
        _cpu_ms(point),
        _client_kb(point),
    ]
