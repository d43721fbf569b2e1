"""Retries: a share of the traffic, each on its own time."""

import pytest

from gateway.core.call import Call, CallState
from gateway.core.commands import Settle, Start
from gateway.core.events import Abandoned, Arrived, Failed, TimePassed
from gateway.core.outcomes import FailureKind, Outcome
from gateway.core.policies import policy_from_name
from gateway.core.retries import Retries, RetryRules
from gateway.core.scheduler import Scheduler
from gateway.core.types import RequestId
from tests.builders import a_backend, a_call, a_request
from tests.core.referee import Referee

RULES = RetryRules(max_attempts=4, share=0.5, burst=2, backoff_s=0.1, max_backoff_s=0.3)


def a_failed_call(name: str = "r", attempts: int = 1) -> Call:
    """A call that has been tried."""
    call = a_call(name)
    call.attempts = attempts
    return call


def test_retries_are_a_share_of_the_traffic_beyond_a_burst() -> None:
    retries = Retries(RULES)
    assert [retries.may(a_failed_call()) for _ in range(3)] == [True, True, False]

    for _ in range(4):
        retries.earn()

    assert [retries.may(a_failed_call()) for _ in range(3)] == [True, True, False]


def test_a_call_has_so_many_attempts() -> None:
    assert Retries(RULES).may(a_failed_call(attempts=3))
    assert not Retries(RULES).may(a_failed_call(attempts=4))


def test_pauses_grow_to_a_bound_and_differ_between_calls() -> None:
    spans = [RULES.pause_s("r", attempts) for attempts in (1, 2, 3, 40)]

    for span_s, nominal_s in zip(spans, (0.1, 0.2, 0.3, 0.3), strict=True):
        assert nominal_s / 2 <= span_s <= nominal_s
    assert spans[0] == RULES.pause_s("r", 1)
    assert len({RULES.pause_s(f"r{number}", 1) for number in range(50)}) == 50


def test_calls_come_out_of_their_pause_in_order_and_only_if_they_still_wait() -> None:
    retries = Retries(RULES)
    calls = [a_failed_call(f"r{number}", number + 1) for number in range(3)]
    for call in reversed(calls):
        retries.pause(call, now=0.0)
    calls[1].state = CallState.ENDED

    first_at = retries.next_at()
    assert first_at is not None
    assert retries.due(first_at) == [calls[0]]
    assert retries.due(1.0) == [calls[2]]
    assert retries.next_at() is None


def test_on_the_only_backend_a_call_waits_and_may_leave_meanwhile() -> None:
    scheduler = Scheduler([a_backend("a")], policy_from_name("hexsage"))
    referee = Referee(scheduler)
    for name in ("stays", "leaves"):
        referee.feed(Arrived(a_request(name)), 0.0)
        assert not referee.feed(Failed(RequestId(name), FailureKind.RESET, retryable=True), 1.0)
    referee.feed(Abandoned(RequestId("leaves")), 1.0)

    commands = []
    while scheduler.wake_at is not None and scheduler.wake_at < 2.0:
        commands += referee.feed(TimePassed(), scheduler.wake_at)

    assert [type(command) for command in commands] == [Start]
    assert isinstance(commands[0], Start)
    assert (commands[0].request_id, commands[0].attempt) == ("stays", 2)


def test_without_budget_a_failure_is_the_end() -> None:
    scheduler = Scheduler(
        [a_backend("a"), a_backend("b")],
        policy_from_name("hexsage"),
        retries=RetryRules(share=0.0, burst=0),
    )
    scheduler.handle(Arrived(a_request("r")), 0.0)

    (settled,) = scheduler.handle(Failed(RequestId("r"), FailureKind.RESET, retryable=True), 1.0)

    assert isinstance(settled, Settle)
    assert settled.outcome is Outcome.FAILED


@pytest.mark.parametrize(
    "wrong", [{"max_attempts": 0}, {"share": -1.0}, {"burst": -1}, {"backoff_s": -0.1}]
)
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        RetryRules(**wrong)  # type: ignore[arg-type]  # the point is that they are wrong
