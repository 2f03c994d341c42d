"""/metrics: what this api-server counts itself and what the runtime reports, as Prometheus text.

In: finished HTTP requests, their times, the engine client's counters. Out: one text page.
Does not know: what the counters mean (monitor/families.py does); no request id is ever a label.
"""

from collections.abc import Callable, Iterable, Iterator

import prometheus_client
from fastapi import APIRouter
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client import Counter as PrometheusCounter
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from antiphon.ids import stage_of
from antiphon.messages.control import Counter
from antiphon.monitor.families import FAMILIES, PREFIX, Family, Kind, family_of

_LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
_RTF_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0, 10.0)
_UNDERRUN_BUCKETS_S = (0.0, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_BUCKETS = {
    "tpot_seconds": _TOKEN_BUCKETS_S,
    "audio_rtf_ratio": _RTF_BUCKETS,
    "audio_underrun_seconds": _UNDERRUN_BUCKETS_S,
}
OWN = (
    "http_requests_total",
    "http_requests_open",
    "websockets_open",
    "http_request_seconds",
    "ttft_seconds",
    "ttfa_seconds",
    "tpot_seconds",
    "e2e_seconds",
    "audio_rtf_ratio",
    "audio_underrun_seconds",
)
"""The families that an api-server counts here; all others come from the runtime."""
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class HttpMetrics:
    """Owns the metrics of one api-server; each has its own registry, so that two apps in one process do not clash.

    process: the api-server's name, a label of what it counts itself. num_open: HTTP requests that are not over.
    num_sockets: the WebSockets among them.
    """

    def __init__(
        self,
        process: str,
        counters: Callable[[], Iterable[Counter]],
        num_open: Callable[[], int],
        num_sockets: Callable[[], int],
    ) -> None:
        self._process = process
        self._registry = CollectorRegistry()
        self._registry.register(_RuntimeCollector(counters))
        requests = FAMILIES["http_requests_total"]
        self._requests = PrometheusCounter(
            requests.page_name, requests.meaning, requests.labels, registry=self._registry
        )
        self._show(FAMILIES["http_requests_open"], num_open)
        self._show(FAMILIES["websockets_open"], num_sockets)
        histograms = (FAMILIES[name] for name in OWN if FAMILIES[name].kind is Kind.HISTOGRAM)
        self._histograms = {family.name: self._histogram(family) for family in histograms}

    def count_request(self, route: str, method: str, status: int, duration_s: float) -> None:
        """One HTTP request is over."""
        self._requests.labels(self._process, route, method, str(status)).inc()
        self._histograms["http_request_seconds"].labels(self._process, route).observe(duration_s)

    def ttft(self, task: str, value: float) -> None:
        """See Observer."""
        self._observe("ttft_seconds", task, value)

    def ttfa(self, task: str, value: float) -> None:
        """See Observer."""
        self._observe("ttfa_seconds", task, value)

    def tpot(self, task: str, value: float) -> None:
        """See Observer."""
        self._observe("tpot_seconds", task, value)

    def e2e(self, task: str, value: float) -> None:
        """See Observer."""
        self._observe("e2e_seconds", task, value)

    def rtf(self, task: str, value: float) -> None:
        """See Observer."""
        self._observe("audio_rtf_ratio", task, value)

    def underrun(self, task: str, value: float) -> None:
        """See Observer."""
        self._observe("audio_underrun_seconds", task, value)

    def page(self) -> bytes:
        """Everything in the Prometheus text format."""
        return generate_latest(self._registry)

    def _observe(self, name: str, task: str, value: float) -> None:
        self._histograms[name].labels(self._process, task).observe(value)

    def _show(self, family: Family, value: Callable[[], int]) -> None:
        gauge = Gauge(family.page_name, family.meaning, family.labels, registry=self._registry)
        gauge.labels(self._process).set_function(value)

    def _histogram(self, family: Family) -> Histogram:
        buckets = _BUCKETS.get(family.name, _LATENCY_BUCKETS_S)
        return Histogram(family.page_name, family.meaning, family.labels, registry=self._registry, buckets=buckets)


class _RuntimeCollector(Collector):
    """Turns the runtime's counters into metric families; one that nobody has counted yet is there without samples."""

    def __init__(self, counters: Callable[[], Iterable[Counter]]) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        metrics = {name: _metric(family) for name, family in FAMILIES.items() if name not in OWN}
        for counter in self._counters():
            family = family_of(counter.name)
            if family is None:  # a test sees to it that there is none
                metric = Metric(f"{PREFIX}{counter.name}", "This counter is not in the table.", "unknown")
                metric = metrics.setdefault(counter.name, metric)
                metric.add_sample(metric.name, dict(counter.labels), counter.value)
                continue
            labels = dict(counter.labels)
            if "stage" in family.labels and "replica" in labels:
                labels["stage"] = stage_of(labels["replica"])
            sample = family.page_name + counter.name.removeprefix(family.name)
            metrics[family.name].add_sample(sample, labels, counter.value)
        yield from metrics.values()


def _metric(family: Family) -> Metric:
    name = family.page_name.removesuffix("_total") if family.kind is Kind.COUNTER else family.page_name
    return Metric(name, family.meaning, family.kind.value)


def metrics_router(metrics: HttpMetrics) -> APIRouter:
    """GET /metrics."""
    router = APIRouter()

    @router.get("/metrics", summary="Prometheus metrics")
    async def get_metrics() -> Response:
        return Response(metrics.page(), media_type=CONTENT_TYPE_LATEST)

    return router
