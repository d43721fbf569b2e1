"""Limits that change while calls wait apply to what waits."""

from gateway.core.admission import QueueLimits
from gateway.core.breaker import HealthRules
from gateway.core.commands import Command, Evict, Reject, Start
from gateway.core.events import Arrived, BackendChanged, Finished, Reconfigured
from gateway.core.outcomes import RejectReason
from gateway.core.policies import policy_from_name
from gateway.core.scheduler import Scheduler
from gateway.core.types import BackendId, BackendState, RequestId, TenantId
from tests.builders import a_backend, a_request
from tests.core.referee import Referee


def a_busy_referee(*tenants: str) -> Referee:
    """One call runs, one of each of these tenants waits: q0, q1, …, a second apart."""
    scheduler = Scheduler(
        [a_backend("a", max_in_flight=1)],
        policy_from_name("least_backlog+fcfs"),
        limits=QueueLimits(timeout_s=100.0),
    )
    referee = Referee(scheduler)
    referee.feed(Arrived(a_request("runs")), 0.0)
    for number, tenant in enumerate(tenants):
        request = a_request(f"q{number}", tenant=TenantId(tenant))
        referee.feed(Arrived(request), float(number))
    return referee


def evicted(commands: list[Command]) -> list[tuple[str, RejectReason]]:
    """Who was turned out, and why."""
    return [(c.request_id, c.reason) for c in commands if isinstance(c, Evict)]


def test_a_shorter_timeout_turns_out_who_has_waited_longer() -> None:
    referee = a_busy_referee("t", "t", "t")

    commands = referee.feed(Reconfigured(limits=QueueLimits(timeout_s=8.5)), 10.0)

    assert evicted(commands) == [
        ("q0", RejectReason.QUEUE_TIMEOUT),
        ("q1", RejectReason.QUEUE_TIMEOUT),
    ]


def test_a_smaller_queue_turns_out_who_has_waited_least() -> None:
    referee = a_busy_referee("t", "t", "t")

    commands = referee.feed(Reconfigured(limits=QueueLimits(max_requests=1)), 10.0)

    assert evicted(commands) == [
        ("q2", RejectReason.QUEUE_FULL),
        ("q1", RejectReason.QUEUE_FULL),
    ]


def test_a_larger_queue_takes_more_at_once() -> None:
    referee = a_busy_referee("t")
    referee.feed(Reconfigured(limits=QueueLimits(max_requests=1)), 1.0)
    assert isinstance(referee.feed(Arrived(a_request("late")), 2.0)[0], Reject)

    referee.feed(Reconfigured(limits=QueueLimits(max_requests=2)), 3.0)

    assert referee.feed(Arrived(a_request("later")), 4.0) == []


def test_a_tenant_has_the_share_of_the_queue_that_is_its_own() -> None:
    referee = a_busy_referee("small", "large")
    limits = QueueLimits(max_requests=10, max_tenant_share=1.0, tenant_shares={"small": 0.1})
    referee.feed(Reconfigured(limits=limits), 2.0)

    (refusal, _) = referee.feed(Arrived(a_request("x", tenant=TenantId("small"))), 3.0)

    assert isinstance(refusal, Reject)
    assert refusal.reason is RejectReason.TENANT_QUEUE_FULL
    assert referee.feed(Arrived(a_request("y", tenant=TenantId("large"))), 3.0) == []


def test_new_weights_hold_from_the_next_turn() -> None:
    referee = a_busy_referee(*["heavy", "light"] * 12)
    referee.feed(Reconfigured(weights={"heavy": 3.0}), 30.0)

    served, running = [], "runs"
    for step in range(12):
        commands = referee.feed(Finished(RequestId(running), 10), 31.0 + step)
        running = next(c.request_id for c in commands if isinstance(c, Start))
        served.append(int(running[1:]) % 2)

    assert 8 <= served.count(0) <= 10


def test_a_backend_that_has_been_silent_for_too_long_by_new_rules_is_kept_out_at_once() -> None:
    scheduler = Scheduler([a_backend("a"), a_backend("b")], policy_from_name("hexsage"))
    referee = Referee(scheduler)
    referee.feed(Arrived(a_request("silent")), 0.0)

    referee.feed(Reconfigured(health=HealthRules(silence_s=10.0)), 30.0)

    assert scheduler.fleet.loads[BackendId("a")].breaker.is_open


def test_what_new_health_rules_make_due_happens_at_once() -> None:
    backend = a_backend("a")
    scheduler = Scheduler([backend], policy_from_name("hexsage"), health=HealthRules(ramp_s=100.0))
    referee = Referee(scheduler)
    referee.feed(Arrived(a_request("before")), 0.0)
    referee.feed(BackendChanged(backend, BackendState.DOWN), 1.0)
    referee.feed(BackendChanged(backend, BackendState.UP), 2.0)
    load = scheduler.fleet.loads[backend.id]
    assert load.breaker.ramp == 0.1

    referee.feed(Reconfigured(health=HealthRules(ramp_s=10.0)), 7.5)

    assert load.breaker.ramp == 0.6
