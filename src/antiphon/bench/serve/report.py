"""A run for people (tables) and for later comparison (JSON).

In: a ServeRun. Out: rich's tables, a JSON document. Does not know: how anything was measured.
"""

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path

import msgspec
from rich.table import Table

from antiphon.bench.measures import distribution
from antiphon.bench.report import Json
from antiphon.bench.serve.metrics import NO_UNIT, Values
from antiphon.bench.serve.probe import Samples, by_lane, by_owner
from antiphon.bench.serve.run import ServeRun, ServeSettings

KIND = "serve"
_COLUMNS = ("mean", "median", "p90", "p95", "p99", "n")
_POOLED = frozenset({"itl"})
"""Metrics with many values per answer: only their distribution is written down."""
_MAX_ERRORS = 5


def as_json(run: ServeRun) -> Json:
    """The whole run; `values` holds one value per answer, so that runs can be compared."""
    return {
        "kind": KIND,
        "environment": run.environment,
        "target": dataclasses.asdict(run.target),
        "settings": settings_json(run.settings),
        "totals": dataclasses.asdict(run.totals),
        "load_generator": dataclasses.asdict(run.lateness),
        "distributions": {name: distribution(values) for name, values in run.values.items()},
        "values": {name: values for name, values in run.values.items() if name not in _POOLED},
        "per_request": per_request(run),
        "replicas": by_owner(run.counters, "replica"),
        "edges": by_owner(run.counters, "edge"),
        "lanes": by_lane(run.counters),
        "errors": errors_of(run),
    }


def settings_json(settings: ServeSettings) -> Json:
    """As a plain dict; an infinite rate is null."""
    load = {**dataclasses.asdict(settings.load)}
    load["rate_rps"] = None if math.isinf(settings.load.rate_rps) else settings.load.rate_rps
    prompts_file = None if settings.prompts_file is None else str(settings.prompts_file)
    return {**dataclasses.asdict(settings), "load": load, "prompts_file": prompts_file}


def per_request(run: ServeRun) -> dict[str, float]:
    """What one request cost: CPU seconds of each process, messages and bytes of each lane, bytes handed off."""
    num = run.totals.num_requests
    found = {f"cpu_s {name}": seconds / num for name, seconds in run.cpu_s.items()}
    for lane, counters in by_lane(run.counters).items():
        found[f"messages {lane}"] = counters.get("lane_messages_total", 0.0) / num
        found[f"bytes {lane}"] = counters.get("lane_bytes_total", 0.0) / num
    for replica, counters in by_owner(run.counters, "replica").items():
        if "chunks_put_total" in counters:
            found[f"chunks from {replica}"] = counters["chunks_put_total"] / num
            found[f"chunk_bytes from {replica}"] = counters.get("chunk_bytes_put_total", 0.0) / num
    return found


def errors_of(run: ServeRun) -> list[str]:
    """The first few, each with its number."""
    failed = sorted((record for record in run.result.records if record.error), key=lambda record: record.number)
    return [f"request {record.number}: {record.error}" for record in failed[:_MAX_ERRORS]]


def write_json(document: Json, path: Path) -> None:
    """Write it, indented."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


def tables(run: ServeRun) -> Iterable[Table]:
    """Totals, metrics, and where the time and the bytes went."""
    yield _totals(run)
    yield metrics_table(run.values)
    if run.counters:
        yield _replicas(run.counters, run.result.wall_s)
        yield _lanes(run)
    yield _cpu(run)


def metrics_table(values: Values, title: str = "per answer") -> Table:
    """One row per metric. A p99 of fewer than 100 values is left out."""
    table = _table(title, "metric", "unit", *_COLUMNS)
    for name, found in sorted(values.items(), key=lambda pair: _ORDER.get(pair[0], 99)):
        summary, unit = distribution(found), "" if name in NO_UNIT else "s"
        cells = [f"{summary[column]:.4g}" if column in summary else "-" for column in _COLUMNS[:-1]]
        table.add_row(name, unit, *cells, str(len(found)))
    return table


_ORDER = {name: place for place, name in enumerate(("ttft", "tpot", "itl", "e2el", "audio_ttfp", "audio_rtf"))}


def _totals(run: ServeRun) -> Table:
    totals, late = run.totals, run.lateness
    slo = ", ".join(f"{name} <= {limit:g}" for name, limit in run.settings.slo.limits.items())
    rate = run.settings.load.rate_rps
    offered = "closed loop" if math.isinf(rate) else f"{rate:g} req/s, {run.settings.load.shape}"
    table = _table("", "total", "value")
    rows: list[tuple[str, str | None]] = [
        ("load", f"{offered}, {run.settings.load.max_concurrency or 'any number'} open at once"),
        ("requests", f"{totals.num_requests}, failed {totals.num_failed}, wrong {totals.num_wrong}"),
        ("duration", f"{totals.duration_s:.2f} s"),
        ("request_throughput", f"{totals.request_throughput:.4g} req/s"),
        ("goodput", None if totals.goodput is None else f"{totals.goodput:.4g} req/s ({slo})"),
        ("output tokens", f"{totals.output_token_throughput:.4g} tok/s"),
        ("audio", f"{totals.audio_throughput:.4g} s/s" if totals.audio_throughput else None),
        (
            "audio_continuity_ok_rate",
            None if totals.audio_continuity_ok_rate is None else f"{totals.audio_continuity_ok_rate:.4g}",
        ),
        (
            "load generator",
            f"sent {late.send_lag_s * 1000:.1f} ms late, read {late.loop_lag_s * 1000:.1f} ms late (p99), "
            f"{late.cpu_share:.0%} of a core",
        ),
    ]
    for name, value in rows:
        if value is not None:
            table.add_row(name, value)
    return table


def _replicas(counters: Samples, wall_s: float) -> Table:
    table = _table("per stage", "replica", "steps", "busy s", "busy", "chunks out", "MB out", "chunks in", "MB in")
    for replica, found in by_owner(counters, "replica").items():
        busy_s = found.get("step_seconds_total", 0.0)
        table.add_row(
            replica,
            f"{found.get('steps_total', 0.0):.0f}",
            f"{busy_s:.2f}",
            f"{busy_s / wall_s:.0%}",
            f"{found.get('chunks_put_total', 0.0):.0f}",
            f"{found.get('chunk_bytes_put_total', 0.0) / 1e6:.2f}",
            f"{found.get('chunks_received_total', 0.0):.0f}",
            f"{found.get('chunk_bytes_received_total', 0.0) / 1e6:.2f}",
        )
    return table


def _lanes(run: ServeRun) -> Table:
    table = _table("per lane", "process and lane", "messages", "per request", "bytes", "per request")
    for lane, found in by_lane(run.counters).items():
        messages, size = found.get("lane_messages_total", 0.0), found.get("lane_bytes_total", 0.0)
        num = run.totals.num_requests
        table.add_row(lane, f"{messages:.0f}", f"{messages / num:.1f}", f"{size:.0f}", f"{size / num:.0f}")
    return table


def _cpu(run: ServeRun) -> Table:
    table = _table("CPU", "process", "seconds", "ms per request", "of a core")
    for name, seconds in run.cpu_s.items():
        share = seconds / run.result.wall_s
        table.add_row(name, f"{seconds:.2f}", f"{seconds / run.totals.num_requests * 1000:.2f}", f"{share:.1%}")
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 or column in ("value", "unit") else "right", no_wrap=True)
    return table
