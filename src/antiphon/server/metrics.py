"""/metrics: what this api-server counts itself and what the runtime reports, as Prometheus text.

In: finished HTTP requests, first outputs, the engine client's counters. Out: one text page.
Does not know: what the counters mean; no request id is ever a label.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client import Counter as PrometheusCounter
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from antiphon.messages.control import Counter

_LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_]")
_PREFIX = "antiphon_"


class HttpMetrics:
    """Owns the metrics of one api-server; each has its own registry, so that two apps in one process do not clash."""

    def __init__(self, counters: Callable[[], Iterable[Counter]], num_open: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_RuntimeCollector(counters))
        self._requests = PrometheusCounter(
            f"{_PREFIX}http_requests",
            "Answered HTTP requests; status 499: the client left first.",
            ("route", "method", "status"),
            registry=self._registry,
        )
        Gauge(
            f"{_PREFIX}http_requests_open",
            "HTTP requests that have begun and are not over, without /health, /ready and /metrics.",
            registry=self._registry,
        ).set_function(num_open)
        self._durations = self._histogram("http_request_seconds", "From request to the last byte.", "route")
        self._ttft = self._histogram("ttft_seconds", "From request to the first text.", "task")
        self._ttfa = self._histogram("ttfa_seconds", "From request to the first audio.", "task")

    def count_request(self, route: str, method: str, status: int, duration_s: float) -> None:
        """One HTTP request is over."""
        self._requests.labels(route, method, str(status)).inc()
        self._durations.labels(route).observe(duration_s)

    def timer(self, task: str) -> "FirstOutputTimer":
        """Starts the clock of one request of `task`."""
        return FirstOutputTimer(self._ttft.labels(task).observe, self._ttfa.labels(task).observe)

    def page(self) -> bytes:
        """Everything in the Prometheus text format."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, meaning: str, label: str) -> Histogram:
        return Histogram(_PREFIX + name, meaning, (label,), registry=self._registry, buckets=_LATENCY_BUCKETS_S)


class FirstOutputTimer:
    """Owns one request's start time; each of `saw_text` and `saw_audio` counts once."""

    def __init__(self, observe_text: Callable[[float], None], observe_audio: Callable[[float], None]) -> None:
        self._started_s = time.perf_counter()
        self._observe_text: Callable[[float], None] | None = observe_text
        self._observe_audio: Callable[[float], None] | None = observe_audio

    def saw_text(self) -> None:
        """Text is on its way to the client."""
        if self._observe_text is not None:
            self._observe_text(time.perf_counter() - self._started_s)
            self._observe_text = None

    def saw_audio(self) -> None:
        """Audio is on its way to the client."""
        if self._observe_audio is not None:
            self._observe_audio(time.perf_counter() - self._started_s)
            self._observe_audio = None


class _RuntimeCollector(Collector):
    """Turns the runtime's counters into metric families: `..._total` are counters, all others gauges."""

    def __init__(self, counters: Callable[[], Iterable[Counter]]) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for counter in self._counters():
            name = _metric_name(counter.name)
            if name not in families:
                kind = "counter" if name.endswith("_total") else "gauge"
                families[name] = Metric(name.removesuffix("_total"), f"Runtime counter {counter.name}.", kind)
            labels = {_NOT_IN_A_NAME.sub("_", key): value for key, value in counter.labels}
            families[name].add_sample(name, labels, counter.value)
        yield from families.values()


def _metric_name(name: str) -> str:
    plain = _NOT_IN_A_NAME.sub("_", name)
    return plain if plain.startswith(_PREFIX) else _PREFIX + plain


def metrics_router(metrics: HttpMetrics) -> APIRouter:
    """GET /metrics."""
    router = APIRouter()

    @router.get("/metrics", summary="Prometheus metrics")
    async def get_metrics() -> Response:
        return Response(metrics.page(), media_type=CONTENT_TYPE_LATEST)

    return router
