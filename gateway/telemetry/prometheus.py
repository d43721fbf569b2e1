"""Numbers -> Prometheus' text format."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry

from gateway.telemetry.counters import Counters
from gateway.telemetry.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class BackendGauges(NamedTuple):
    """One backend at this instant."""

    name: str
    is_up: bool
    in_flight: int
    backlog_s: float
    kv_reserved_tokens: int


class Gauges(NamedTuple):
    """The scheduler at this instant."""

    queued: int
    in_flight: int
    open_workflows: int
    tasks: int
    backends: tuple[BackendGauges, ...]


def render(counters: Counters, gauges: Gauges) -> bytes:
    """Return everything in the text format."""
    registry = CollectorRegistry()
    registry.register(_Collected([*_counted(counters), *_gauged(gauges)]))
    return generate_latest(registry)


class _Collected(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _counted(counters: Counters) -> Iterator[Metric]:
    yield _counter(
        "hexsage_requests",
        "Requests that have ended, by how.",
        ("model", "outcome", "reason"),
        counters.requests.items(),
    )
    yield _counter(
        "hexsage_tokens",
        "Tokens of completed requests.",
        ("model", "kind"),
        counters.tokens.items(),
    )
    yield _counter(
        "hexsage_late_requests",
        "Requests that were answered after their deadline.",
        ("model",),
        [((model,), count) for model, count in counters.late.items()],
    )
    yield _counter(
        "hexsage_attempts",
        "Calls sent to a backend.",
        ("backend",),
        [((name,), count) for name, count in counters.starts.items()],
    )
    yield _counter(
        "hexsage_retries",
        "Calls sent to a backend after another attempt had failed.",
        ("backend",),
        [((name,), count) for name, count in counters.retries.items()],
    )
    yield _counter(
        "hexsage_failed_attempts",
        "Attempts that a backend failed, by kind.",
        ("kind",),
        [((kind,), count) for kind, count in counters.failures.items()],
    )
    yield _counter(
        "hexsage_workflows",
        "Workflows that have ended, by how.",
        ("workflow", "state", "late"),
        counters.workflows.items(),
    )
    yield _histogram(
        "hexsage_queue_seconds",
        "Time until a call was sent to a backend.",
        "model",
        counters.queue_s,
    )
    yield _histogram(
        "hexsage_time_to_first_token_seconds",
        "From arrival to the first token of a stream.",
        "model",
        counters.first_token_s,
    )
    yield _histogram(
        "hexsage_time_to_last_token_seconds",
        "From arrival to the end of a completed answer.",
        "model",
        counters.last_token_s,
    )
    yield _histogram(
        "hexsage_workflow_seconds",
        "From a workflow's first call to its end, completed ones.",
        "workflow",
        counters.workflow_s,
    )


def _gauged(gauges: Gauges) -> Iterator[Metric]:
    yield GaugeMetricFamily("hexsage_requests_queued", "Requests held or queued.", gauges.queued)
    yield GaugeMetricFamily("hexsage_requests_in_flight", "Requests at backends.", gauges.in_flight)
    yield GaugeMetricFamily(
        "hexsage_workflows_open", "Workflows that have not ended.", gauges.open_workflows
    )
    yield GaugeMetricFamily("hexsage_tasks", "Tasks of the event loop.", gauges.tasks)
    by_backend = (
        ("hexsage_backend_up", "1 if the backend may be given new calls."),
        ("hexsage_backend_requests_in_flight", "Requests at the backend."),
        ("hexsage_backend_backlog_seconds", "Predicted work queued for or running at it."),
        ("hexsage_backend_kv_reserved_tokens", "KV cache that running calls hold or will hold."),
    )
    for field, (name, text) in enumerate(by_backend, start=1):
        family = GaugeMetricFamily(name, text, labels=["backend"])
        for backend in gauges.backends:
            family.add_metric([backend.name], float(backend[field]))
        yield family


def _counter(
    name: str, text: str, labels: tuple[str, ...], counts: Iterable[tuple[tuple[str, ...], int]]
) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, count in sorted(counts):
        family.add_metric(values, count)
    return family


def _histogram(name: str, text: str, label: str, histograms: Mapping[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=[label])
    for value, histogram in sorted(histograms.items()):
        family.add_metric([value], histogram.cumulative(), histogram.total)
    return family
