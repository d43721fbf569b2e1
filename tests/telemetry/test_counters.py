"""The decision log in numbers."""

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.breaker import BreakerState
from gateway.core.commands import Settle, Start, WorkflowEnded
from gateway.core.events import Failed, TimePassed
from gateway.core.outcomes import FailureKind, Outcome, RejectReason
from gateway.core.specs import StageSpec, WorkflowSpec
from gateway.core.types import (
    ANONYMOUS,
    BackendId,
    Decision,
    RequestId,
    WorkflowKey,
)
from gateway.telemetry.counters import Counters
from gateway.telemetry.gauges import (
    BackendGauges,
    Gauges,
    PredictorGauges,
    TunerGauges,
    WorkerGauges,
)
from gateway.telemetry.histogram import SHORT, Histogram
from gateway.telemetry.prometheus import render

NOBODY = Gauges()
DECLARED = {"t": WorkflowSpec(name="t", stages=(StageSpec(name="draft"),))}


def counters() -> Counters:
    return Counters(knows_model={"m1"}.__contains__, declared=DECLARED)


def rendered(counted: Counters | None = None, gauges: Gauges = NOBODY) -> bytes:
    return render(counted or counters(), gauges, Histogram(), Histogram())


def a_settle(
    outcome: Outcome = Outcome.COMPLETED,
    *,
    reason: RejectReason | FailureKind | None = None,
    model: str = "m1",
    deadline_at: float | None = None,
) -> Settle:
    return Settle(
        request_id=RequestId("r"),
        outcome=outcome,
        reason=reason,
        tenant=ANONYMOUS,
        model=model,
        workflow=None,
        workflow_name=None,
        stage=None,
        backend_id=BackendId("b"),
        attempts=1,
        arrived_at=10.0,
        started_at=10.5,
        first_token_at=11.0,
        ended_at=14.0,
        prompt_tokens=100,
        output_tokens=20,
        predicted_output_tokens=25.0,
        predicted_s=3.0,
        deadline_at=deadline_at,
    )


def a_start(attempt: int) -> Start:
    decision = Decision(
        request_id=RequestId("r"), backend_id=BackendId("b"), decided_at=0.0, policy="p"
    )
    return Start(RequestId("r"), BackendId("b"), 0, decision, attempt)


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_a_completed_request_is_counted_once_with_its_times_and_tokens() -> None:
    counted = counters()
    counted.observe(14.0, TimePassed(), [a_start(1), a_settle()])

    seen = samples(rendered(counted))

    model = (("model", "m1"),)
    assert seen["hexsage_requests_total", (*model, ("outcome", "completed"), ("reason", ""))] == 1
    assert seen["hexsage_tokens_total", (("kind", "prompt"), *model)] == 100
    assert seen["hexsage_tokens_total", (("kind", "output"), *model)] == 20
    assert seen["hexsage_queue_seconds_sum", model] == 0.5
    assert seen["hexsage_time_to_first_token_seconds_sum", model] == 1.0
    assert seen["hexsage_time_to_last_token_seconds_sum", model] == 4.0
    assert seen["hexsage_time_to_last_token_seconds_bucket", (("le", "2.5"), *model)] == 0
    assert seen["hexsage_time_to_last_token_seconds_bucket", (("le", "5.0"), *model)] == 1
    assert seen["hexsage_attempts_total", (("backend", "b"),)] == 1


def test_only_completed_requests_have_a_time_to_the_last_token() -> None:
    counted = counters()
    counted.observe(1.0, TimePassed(), [a_settle(Outcome.FAILED, reason=FailureKind.RESET)])

    assert not counted.last_token_s
    assert counted.requests["m1", "failed", "reset"] == 1


def test_retries_and_failed_attempts_are_counted_even_if_the_request_succeeds() -> None:
    counted = counters()
    counted.observe(1.0, Failed(RequestId("r"), FailureKind.CONNECT, retryable=True), [a_start(2)])
    counted.observe(2.0, TimePassed(), [a_settle()])

    assert counted.retries == {"b": 1}
    assert counted.failures == {"connect": 1}


def test_lateness_is_against_the_deadline() -> None:
    counted = counters()
    counted.observe(1.0, TimePassed(), [a_settle(deadline_at=13.9), a_settle(deadline_at=14.0)])

    assert counted.late == {("m1", "queue"): 1}


def test_what_clients_write_makes_no_series() -> None:
    counted = counters()
    for number in range(1000):
        name = f'x{number}"\n'
        settle = a_settle(Outcome.REJECTED, reason=RejectReason.MODEL_NOT_FOUND, model=name)
        ended = WorkflowEnded(
            key=WorkflowKey(ANONYMOUS, name),
            name=name,
            state="completed",
            opened_at=0.0,
            ended_at=1.0,
            deadline_at=None,
            calls=1,
        )
        counted.observe(1.0, TimePassed(), [settle, ended])

    assert counted.requests == {("other", "rejected", "model_not_found"): 1000}
    assert counted.workflows == {("other", "completed", "false"): 1000}


def test_the_gateway_at_this_instant_is_a_set_of_gauges() -> None:
    backend = BackendGauges("b", breaker="open", in_flight=3, backlog_s=1.5, decode_factor=2.0)

    seen = samples(rendered(gauges=Gauges(queued=2, tenants={"acme": 2}, backends=(backend,))))

    named = (("backend", "b"),)
    assert seen["hexsage_requests_queued", ()] == 2
    assert seen["hexsage_tenant_requests_queued", (("tenant", "acme"),)] == 2
    assert seen["hexsage_backend_up", named] == 1
    assert seen["hexsage_backend_backlog_seconds", named] == 1.5
    assert seen["hexsage_backend_decode_slowness_ratio", named] == 2
    breaker = {s: seen["hexsage_backend_breaker", (*named, ("state", s))] for s in BreakerState}
    assert breaker == {"open": 1, "half_open": 0, "closed": 0}


def test_workers_are_shown_by_number_those_that_are_away_with_nothing_but_their_restarts() -> None:
    lag_s = Histogram(SHORT)
    lag_s.observe(0.02)
    here = WorkerGauges(
        number=0, is_up=True, connections=5, in_flight=2, memory_bytes=8, lag_s=lag_s
    )

    seen = samples(rendered(gauges=Gauges(workers=(here, WorkerGauges(number=1, restarts=3)))))

    first, second = (("worker", "0"),), (("worker", "1"),)
    for name, values in (
        ("up", (1, 0)),
        ("restarts_total", (0, 3)),
        ("connections", (5, 0)),
        ("requests_in_flight", (2, 0)),
        ("resident_memory_bytes", (8, 0)),
        ("event_loop_lag_seconds_count", (1, 0)),
    ):
        shown = tuple(seen[f"hexsage_worker_{name}", labels] for labels in (first, second))
        assert shown == values, name


def test_forecasts_and_the_tuner_are_shown() -> None:
    predictor = PredictorGauges(
        by_level={"stage": 5},
        missed={"late": 1},
        spared={"repeated": 3},
        scores={"m1": {"covered_80": 0.81}},
    )
    tuner = TunerGauges(policy="hexsage", alpha=0.7, searches={"left": 3})

    seen = samples(rendered(gauges=Gauges(predictor=predictor, tuner=tuner)))

    assert seen["hexsage_predictions_total", (("level", "stage"),)] == 5
    assert seen["hexsage_predictions_missed_total", (("reason", "late"),)] == 1
    assert seen["hexsage_predictions_spared_total", (("reason", "repeated"),)] == 3
    covered = (("model", "m1"), ("score", "covered_80"))
    assert seen["hexsage_prediction_score_ratio", covered] == 0.81
    assert seen["hexsage_policy", (("policy", "hexsage"),)] == 1
    assert seen["hexsage_policy_alpha", ()] == 0.7
    assert seen["hexsage_tuner_searches", (("outcome", "left"),)] == 3


@pytest.mark.parametrize(
    ("name", "stage", "labels"),
    [
        pytest.param("t", "draft", ("t", "draft", "true"), id="declared"),
        pytest.param("t", "x", ("t", "other", "true"), id="a stage that is not"),
        pytest.param("u", "draft", ("other", "other", "true"), id="a workflow that is not"),
        pytest.param(None, None, ("other", "other", "true"), id="without a name"),
    ],
)
def test_stages_keep_their_deadline_or_not(
    name: str | None, stage: str | None, labels: tuple[str, str, str]
) -> None:
    counted = counters()
    key = WorkflowKey(ANONYMOUS, "w")
    settled = replace(a_settle(deadline_at=13.9), workflow=key, workflow_name=name, stage=stage)
    counted.observe(1.0, TimePassed(), [settled, a_settle(deadline_at=13.9)])

    assert counted.stages == {labels: 1}


def test_a_stream_has_a_time_between_its_tokens() -> None:
    counted = counters()
    counted.observe(1.0, TimePassed(), [a_settle()])

    assert counted.inter_token_s["m1"].total == pytest.approx(3.0 / 19)


def test_every_name_has_the_prefix() -> None:
    names = {name for name, _ in samples(rendered())}
    assert {name.partition("_")[0] for name in names} <= {"hexsage", "process"}


def test_a_histogram_counts_up_to_and_with_its_bounds() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 3.0):
        histogram.observe(value)

    assert histogram.cumulative() == [("1.0", 2.0), ("2.0", 3.0), ("+Inf", 4.0)]
    assert histogram.total == 6.0
