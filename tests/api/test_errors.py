"""Every reason to refuse and every way to fail has a row, and each row makes sense."""

import json
from http import HTTPStatus

import pytest

from gateway.api.errors import FAILURES, REFUSALS, failure, refusal
from gateway.backends.base import ConnectFailed, EngineError, TimedOut
from gateway.core.outcomes import FailureKind, RejectReason
from gateway.runtime.run import Refused


def test_every_reason_has_a_row() -> None:
    assert set(REFUSALS) == set(RejectReason)
    assert set(FAILURES) == set(FailureKind)


@pytest.mark.parametrize("reason", list(RejectReason))
def test_a_refusal_that_time_heals_says_when_to_come_back(reason: RejectReason) -> None:
    error = refusal(Refused(reason, 1.2))
    headers = dict(error.response_headers())

    said = json.loads(error.body())["error"]
    assert set(said) == {"message", "type", "param", "code"}
    assert said["code"] == reason.value
    assert headers[b"x-should-retry"] == (b"true" if error.should_retry else b"false")
    assert (b"retry-after" in headers) is error.should_retry
    if error.should_retry:
        assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (b"2", b"1200")
        assert error.status in (429, 503)


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (RejectReason.MODEL_NOT_FOUND, 404),
        (RejectReason.TENANT_QUEUE_FULL, 429),
        (RejectReason.QUEUE_FULL, 503),
        (RejectReason.SHUTTING_DOWN, 503),
        (RejectReason.NO_HEALTHY_BACKEND, 503),
        (RejectReason.DEADLINE_UNREACHABLE, 503),
        (RejectReason.STAGE_NOT_READY, 409),
    ],
)
def test_statuses_are_those_of_the_contract(reason: RejectReason, status: int) -> None:
    assert refusal(Refused(reason)).status == status


def test_a_hopeless_deadline_is_not_to_be_tried_again() -> None:
    assert not refusal(Refused(RejectReason.DEADLINE_UNREACHABLE)).should_retry


def test_a_failure_hides_where_the_engine_lives() -> None:
    error = failure(ConnectFailed("10.0.0.7:8000 refused"))

    assert error.status == HTTPStatus.BAD_GATEWAY
    assert b"10.0.0.7" not in error.body()


def test_a_timeout_is_a_504() -> None:
    assert failure(TimedOut(FailureKind.TIMEOUT_FIRST_TOKEN)).status == 504


def test_an_error_event_is_one_line() -> None:
    error = failure(EngineError(FailureKind.SERVER_ERROR, 500, {"message": "a\nb\r\n\ndata: x"}))

    assert error.event().count(b"\n") == 2
    assert error.event().endswith(b"\n\n")


def test_an_engines_message_may_be_no_text() -> None:
    error = failure(EngineError(FailureKind.SERVER_ERROR, 500, {"message": "half \ud83d of one"}))

    assert json.loads(error.body())["error"]["message"] == "half \ud83d of one"
    assert error.event().count(b"\n") == 2
