"""Numbers -> Prometheus' text format."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry

from gateway.telemetry.counters import Counters
from gateway.telemetry.gauges import (
    BackendGauges,
    Gauges,
    PredictorGauges,
    TunerGauges,
    WorkerGauges,
)
from gateway.telemetry.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(
    counters: Counters, gauges: Gauges, loop_lag_s: Histogram, overhead_s: Histogram
) -> bytes:
    """Return everything in the text format, with what the process itself uses."""
    registry = CollectorRegistry()
    own = _own(loop_lag_s, overhead_s)
    registry.register(_Collected([*_counted(counters), *_gauged(gauges), *own]))
    ProcessCollector(registry=registry)
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
        "Requests that were answered after their deadline, by why.",
        ("model", "cause"),
        counters.late.items(),
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
    yield _counter(
        "hexsage_stage_requests",
        "Answers of workflows with a deadline, by stage and whether they came after it.",
        ("workflow", "stage", "late"),
        counters.stages.items(),
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
        "hexsage_inter_token_seconds",
        "Each stream's mean time from one token to the next.",
        "model",
        counters.inter_token_s,
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
    yield _gauge("hexsage_build", "1, with the version.", "version", {gauges.version: 1})
    for name, text, value in (
        ("hexsage_requests_queued", "Requests held or queued.", gauges.queued),
        ("hexsage_requests_in_flight", "Requests at backends.", gauges.in_flight),
        ("hexsage_workflows_open", "Workflows that have not ended.", gauges.open_workflows),
        ("hexsage_tasks", "Tasks of the event loop.", gauges.tasks),
    ):
        yield GaugeMetricFamily(name, text, value)
    yield CounterMetricFamily(
        "hexsage_reloads_refused", "Configurations that had mistakes.", gauges.reloads_refused
    )
    yield _gauge(
        "hexsage_tenant_requests_queued", "Requests held or queued.", "tenant", gauges.tenants
    )
    yield _counter(
        "hexsage_key_refusals",
        "Requests that the limits of a key turned away.",
        ("tenant", "code"),
        gauges.limited.items(),
    )
    yield from _backends(gauges.backends)
    yield from _workers(gauges.workers)
    if gauges.predictor is not None:
        yield from _predictor(gauges.predictor)
    if gauges.tuner is not None:
        yield from _tuner(gauges.tuner)


def _backends(backends: tuple[BackendGauges, ...]) -> Iterator[Metric]:
    for name, text, field in (
        ("up", "1 if the backend may be given new calls.", "is_up"),
        ("requests_in_flight", "Requests at the backend.", "in_flight"),
        ("requests_queued", "Requests bound to the backend that wait for room.", "queued"),
        ("backlog_seconds", "Predicted work queued for or running at it.", "backlog_s"),
        (
            "kv_reserved_tokens",
            "KV cache that running calls hold or will hold.",
            "kv_reserved_tokens",
        ),
        ("kv_budget_tokens", "KV cache that calls may hold.", "kv_budget_tokens"),
        ("prefill_slowness_ratio", "Time to read prompts, seen / configured.", "prefill_factor"),
        ("decode_slowness_ratio", "Time for a token, seen / configured.", "decode_factor"),
    ):
        yield _gauge_of("backend", name, text, field, {each.name: each for each in backends})
    states = GaugeMetricFamily(
        "hexsage_backend_breaker",
        "1 for the state that the backend's circuit breaker is in.",
        labels=["backend", "state"],
    )
    for backend in backends:
        for state in ("closed", "half_open", "open"):
            states.add_metric([backend.name, state], float(backend.breaker == state))
    yield states


def _workers(workers: tuple[WorkerGauges, ...]) -> Iterator[Metric]:
    for name, text, field in (
        ("up", "1 if the worker process serves.", "is_up"),
        ("connections", "Clients that are connected to the worker.", "connections"),
        (
            "requests_in_flight",
            "Requests that came by the worker and have not ended, queued ones included.",
            "in_flight",
        ),
        ("resident_memory_bytes", "Resident memory of the worker.", "memory_bytes"),
    ):
        yield _gauge_of("worker", name, text, field, {str(each.number): each for each in workers})
    yield _counter(
        "hexsage_worker_restarts",
        "Workers that were started in the place of one that had died or hung.",
        ("worker",),
        [((str(worker.number),), worker.restarts) for worker in workers],
    )
    yield _histogram(
        "hexsage_worker_event_loop_lag_seconds",
        "How late a timer of the worker's event loop fires.",
        "worker",
        {str(worker.number): worker.lag_s for worker in workers},
    )


def _predictor(predictor: PredictorGauges) -> Iterator[Metric]:
    yield _counter(
        "hexsage_predictions",
        "Length forecasts, by the narrowest evidence they rest on.",
        ("level",),
        [((level,), count) for level, count in predictor.by_level.items()],
    )
    yield _counter(
        "hexsage_predictions_missed",
        "Searches for similar prompts that were given up or never begun.",
        ("reason",),
        [((reason,), count) for reason, count in predictor.missed.items()],
    )
    yield _counter(
        "hexsage_predictions_spared",
        "Searches for similar prompts that were not needed: the prompt keeps coming, or the "
        "lengths of its stage are all alike.",
        ("reason",),
        [((reason,), count) for reason, count in predictor.spared.items()],
    )
    yield GaugeMetricFamily(
        "hexsage_predictor_memory_bytes", "What the predictor holds.", predictor.memory_bytes
    )
    yield _gauge(
        "hexsage_prediction_seconds",
        "Of late, on the predictor's thread, waiting not included.",
        "quantile",
        {"0.5": predictor.answer_s_p50, "0.99": predictor.answer_s_p99},
    )
    yield _gauge("hexsage_predictor_samples", "Past calls searched.", "model", predictor.samples)
    scores = GaugeMetricFamily(
        "hexsage_prediction_score_ratio",
        "Of late: shares of answers within the central 50, 80, 95 %; skill over the stage level.",
        labels=["model", "score"],
    )
    for model, found in sorted(predictor.scores.items()):
        for score, value in sorted(found.items()):
            scores.add_metric([model, score], value)
    yield scores


def _tuner(tuner: TunerGauges) -> Iterator[Metric]:
    yield _gauge("hexsage_policy", "1 for the policy in force.", "policy", {tuner.policy: 1})
    if tuner.alpha is not None:
        yield GaugeMetricFamily("hexsage_policy_alpha", "Its alpha.", tuner.alpha)
    yield _gauge(
        "hexsage_tuner_searches",
        "The latest searches for better settings, by what came of them.",
        "outcome",
        tuner.searches,
    )


def _own(loop_lag_s: Histogram, overhead_s: Histogram) -> Iterator[Metric]:
    for name, text, seconds in (
        ("event_loop_lag", "How late a timer of the event loop fires.", loop_lag_s),
        ("overhead", "From a request that was read to its place in the queue.", overhead_s),
    ):
        family = HistogramMetricFamily(f"hexsage_{name}_seconds", text)
        family.add_metric([], seconds.cumulative(), seconds.total)
        yield family


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, number in sorted(values.items()):
        family.add_metric([value], float(number))
    return family


def _gauge_of(kind: str, name: str, text: str, field: str, members: Mapping[str, object]) -> Metric:
    """Return one field of each member of a kind, labelled with the member's name."""
    values = {member: float(getattr(each, field)) for member, each in members.items()}
    return _gauge(f"hexsage_{kind}_{name}", text, kind, values)


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
