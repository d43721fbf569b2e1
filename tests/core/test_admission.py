"""Admission: what may wait, and when there will be room."""

from dataclasses import replace
from math import inf

import pytest

from gateway.core.admission import UNBOUNDED, Admission, QueueLimits
from gateway.core.outcomes import RejectReason
from gateway.core.types import InferenceRequest, TenantId
from tests.builders import a_request


def refusal(admission: Admission, request: InferenceRequest) -> RejectReason | None:
    return admission.refusal(request.tenant, request.model, request.body_bytes)


def a_body(tenant: str, body_bytes: int, model: str = "m") -> InferenceRequest:
    """A request of a tenant."""
    return replace(a_request(tenant=TenantId(tenant), model=model), body_bytes=body_bytes)


FULL, TENANT_FULL = RejectReason.QUEUE_FULL, RejectReason.TENANT_QUEUE_FULL


@pytest.mark.parametrize(
    ("limits", "body_bytes", "reason"),
    [
        pytest.param(QueueLimits(max_requests=3), 0, None, id="the last place"),
        pytest.param(QueueLimits(max_requests=2), 0, FULL, id="too many"),
        pytest.param(QueueLimits(max_bytes=300), 100, None, id="the last byte"),
        pytest.param(QueueLimits(max_bytes=300), 101, FULL, id="too large a body"),
        pytest.param(QueueLimits(max_predicted_s=10.0), 0, None, id="as much work as may wait"),
        pytest.param(QueueLimits(max_predicted_s=9.9), 0, FULL, id="too much work"),
        pytest.param(UNBOUNDED, 1 << 40, None, id="no limits"),
    ],
)
def test_what_waits_is_bounded(
    limits: QueueLimits, body_bytes: int, reason: RejectReason | None
) -> None:
    admission = Admission(limits)
    admission.entered(a_body("a", 150), 4.0)
    admission.entered(a_body("b", 50), 6.0)

    assert refusal(admission, a_body("c", body_bytes)) is reason


@pytest.mark.parametrize(
    ("limits", "tenant", "reason"),
    [
        (QueueLimits(max_requests=8, max_tenant_share=0.25), "a", TENANT_FULL),
        (QueueLimits(max_requests=8, max_tenant_share=0.25), "b", None),
        (QueueLimits(max_requests=8, max_tenant_share=0.25), "new", None),
        (QueueLimits(max_requests=8, max_tenant_share=1.0), "a", None),
        (QueueLimits(max_bytes=800, max_tenant_share=0.25), "a", TENANT_FULL),
        (QueueLimits(max_predicted_s=20, max_tenant_share=0.25), "a", TENANT_FULL),
        (QueueLimits(max_predicted_s=20, max_tenant_share=0.25), "b", None),
    ],
)
def test_one_tenant_may_have_its_share(
    limits: QueueLimits, tenant: str, reason: RejectReason | None
) -> None:
    admission = Admission(limits)
    for _ in range(2):
        admission.entered(a_body("a", 100), 3.0)
    admission.entered(a_body("b", 100), 3.0)

    assert refusal(admission, a_body(tenant, 1)) is reason


@pytest.mark.parametrize(
    "limits",
    [
        QueueLimits(max_requests=8, max_model_share=0.25),
        QueueLimits(max_bytes=800, max_model_share=0.25),
        QueueLimits(max_predicted_s=20, max_model_share=0.25),
    ],
)
def test_calls_of_one_model_leave_room_for_those_of_others(limits: QueueLimits) -> None:
    admission = Admission(limits)
    for tenant in ("a", "b"):
        admission.entered(a_body(tenant, 100, "busy"), 3.0)

    assert refusal(admission, a_body("c", 1, "busy")) is FULL
    assert refusal(admission, a_body("c", 1, "quiet")) is None

    admission.left(a_body("a", 100, "busy"), 3.0)

    assert refusal(admission, a_body("c", 1, "busy")) is None


def test_what_leaves_makes_room_to_the_last_bit() -> None:
    admission = Admission(QueueLimits())
    for seconds in (0.1, 0.2, 0.3):
        admission.entered(a_body("a", 10), seconds)
    for seconds in (0.3, 0.1, 0.2):
        admission.left(a_body("a", 10), seconds)

    total = admission.total
    assert (total.requests, total.body_bytes, total.predicted_s) == (0, 0, 0.0)
    assert admission.tenants == {}
    assert refusal(admission, a_body("a", 0)) is None


def test_before_anything_was_measured_the_prediction_says_when_there_is_room() -> None:
    assert Admission(QueueLimits()).drain_s(now=5.0, ahead=10, parallel_s=33.0) == 33.0


def test_the_measured_drain_rate_says_when_there_is_room() -> None:
    admission = Admission(QueueLimits())
    admission.entered(a_body("a", 0), 1.0)
    for second in range(20):
        admission.started(float(second))

    # One a second.
    assert admission.drain_s(now=20.0, ahead=10, parallel_s=99.0) == pytest.approx(10.0)


def test_an_idle_hour_is_no_sign_of_a_slow_queue() -> None:
    admission = Admission(QueueLimits())
    for second in range(20):
        admission.started(float(second))  # nothing is left waiting
    for _ in range(100):
        admission.entered(a_body("a", 0), 1.0)
    for second in range(20):
        admission.started(3600.0 + second / 10)

    assert admission.drain_s(now=3602.0, ahead=100, parallel_s=99.0) == pytest.approx(10.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_requests": -1},
        {"max_bytes": -1},
        {"timeout_s": 0.0},
        {"max_tenant_share": 0.0},
        {"max_tenant_share": 1.1},
        {"max_model_share": 0.0},
        {"max_backend_share": 2.0},
    ],
)
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        QueueLimits(**wrong)  # type: ignore[arg-type] # by name


def test_without_limits_nothing_times_out() -> None:
    assert UNBOUNDED.timeout_s == inf
