"""Scheduler: what it does about each event, told as stories of a few calls."""

from dataclasses import replace

import pytest

from gateway.core.admission import QueueLimits, Unreachable
from gateway.core.commands import Command, Evict, Reject, Settle, Start, Stop
from gateway.core.events import (
    Abandoned,
    Arrived,
    BackendChanged,
    BackendRemoved,
    Event,
    Failed,
    Finished,
    FirstToken,
    PolicyChanged,
    Progressed,
    ShutdownBegan,
    TimePassed,
)
from gateway.core.ledger import MAX_ENGINE_PRIORITY
from gateway.core.lengths import LengthDistribution
from gateway.core.outcomes import FailureKind, Outcome, RejectReason
from gateway.core.policies import PolicySettings, policy_from_name
from gateway.core.scheduler import Scheduler
from gateway.core.types import Backend, BackendId, BackendState, RequestId, TenantId
from tests.builders import a_backend, a_profile, a_request, a_workflow

A, B = BackendId("a"), BackendId("b")


def a_scheduler(
    *backends: Backend, policy: str = "hexsage", limits: QueueLimits | None = None
) -> Scheduler:
    """A scheduler over these backends, or over one with room for two calls."""
    return Scheduler(
        backends or [a_backend("a", max_in_flight=2)],
        policy_from_name(policy),
        limits=limits or QueueLimits(),
    )


def starts(commands: list[Command]) -> list[tuple[str, str]]:
    """Which call was started where."""
    return [(c.request_id, c.backend_id) for c in commands if isinstance(c, Start)]


def outcomes(commands: list[Command]) -> dict[str, tuple[Outcome, object]]:
    """How which call ended, and why."""
    return {c.request_id: (c.outcome, c.reason) for c in commands if isinstance(c, Settle)}


def finished(name: str, output_tokens: int = 10) -> Finished:
    """The call is done."""
    return Finished(RequestId(name), output_tokens)


def failed(name: str, kind: FailureKind = FailureKind.RESET, *, retryable: bool = True) -> Failed:
    """The call broke."""
    return Failed(RequestId(name), kind, retryable=retryable)


def tenant(name: str) -> TenantId:
    """A tenant."""
    return TenantId(name)


# A call's way


def test_a_call_starts_at_once_when_there_is_room() -> None:
    scheduler = a_scheduler()

    (start,) = scheduler.handle(Arrived(a_request("r")), now=5.0)

    assert isinstance(start, Start)
    assert (start.request_id, start.backend_id, start.attempt) == ("r", A, 1)
    assert (scheduler.waiting, scheduler.running) == (0, 1)


def test_a_finished_call_is_settled_with_all_that_is_known_of_it() -> None:
    scheduler = a_scheduler()
    scheduler.handle(Arrived(a_request("r", answer_tokens=20, deadline_at=60.0)), now=5.0)
    scheduler.handle(FirstToken(RequestId("r")), now=6.0)

    (settled,) = scheduler.handle(finished("r", 17), now=8.0)

    assert isinstance(settled, Settle)
    assert (settled.outcome, settled.reason, settled.backend_id) == (Outcome.COMPLETED, None, A)
    assert (settled.arrived_at, settled.started_at) == (5.0, 5.0)
    assert (settled.first_token_at, settled.ended_at) == (6.0, 8.0)
    assert (settled.output_tokens, settled.predicted_output_tokens) == (17, 20)
    assert (settled.prompt_tokens, settled.deadline_at, settled.attempts) == (100, 60.0, 1)
    # 100 tokens of prompt take a step of 0.1 s, 19 more tokens as many more.
    assert settled.predicted_s == pytest.approx(2.0)


def test_the_prompts_length_is_the_engines_own_once_it_has_told_it() -> None:
    scheduler = a_scheduler()
    scheduler.handle(Arrived(a_request("r")), now=0.0)

    told = Finished(RequestId("r"), output_tokens=3, prompt_tokens=117)
    (settled,) = scheduler.handle(told, now=8.0)

    assert isinstance(settled, Settle)
    assert settled.prompt_tokens == 117


def test_when_a_call_ends_the_most_urgent_one_that_waits_takes_its_place() -> None:
    scheduler = a_scheduler(a_backend("a", max_in_flight=1), policy="edf")
    scheduler.handle(Arrived(a_request("running")), now=0.0)
    scheduler.handle(Arrived(a_request("relaxed", deadline_at=90.0)), now=1.0)
    scheduler.handle(Arrived(a_request("urgent", deadline_at=20.0)), now=2.0)

    commands = scheduler.handle(finished("running"), now=3.0)

    assert starts(commands) == [("urgent", A)]


def test_when_a_client_leaves_its_call_is_stopped_and_its_place_is_taken() -> None:
    scheduler = a_scheduler(a_backend("a", max_in_flight=1))
    scheduler.handle(Arrived(a_request("first")), now=0.0)
    scheduler.handle(Arrived(a_request("second")), now=0.1)

    commands = scheduler.handle(Abandoned(RequestId("first"), 3), now=0.2)

    stop, settled, start = commands
    assert stop == Stop(RequestId("first"), A)
    assert isinstance(settled, Settle)
    assert (settled.outcome, settled.output_tokens) == (Outcome.ABANDONED, 3)
    assert isinstance(start, Start)
    assert start.request_id == "second"


def test_when_the_client_of_a_waiting_call_leaves_nothing_is_stopped() -> None:
    scheduler = a_scheduler(a_backend("a", max_in_flight=1))
    scheduler.handle(Arrived(a_request("first")), now=0.0)
    scheduler.handle(Arrived(a_request("second")), now=0.1)

    commands = scheduler.handle(Abandoned(RequestId("second")), now=0.2)

    assert outcomes(commands) == {"second": (Outcome.ABANDONED, None)}
    assert len(commands) == 1
    assert scheduler.waiting == 0


@pytest.mark.parametrize("policy", ["edf", "hexgen"])
def test_when_a_waiting_call_leaves_the_one_behind_it_may_fit(policy: str) -> None:
    scheduler = a_scheduler(a_backend("a", profile=a_profile(kv_tokens=1000)), policy=policy)
    scheduler.handle(Arrived(a_request("running", prompt_tokens=400)), now=0.0)
    scheduler.handle(Arrived(a_request("huge", prompt_tokens=900)), now=1.0)
    scheduler.handle(Arrived(a_request("small", prompt_tokens=10)), now=2.0)
    assert scheduler.waiting == 2

    commands = scheduler.handle(Abandoned(RequestId("huge")), now=3.0)

    assert starts(commands) == [("small", A)]


def test_late_and_unknown_words_about_calls_change_nothing() -> None:
    scheduler = a_scheduler()
    scheduler.handle(Arrived(a_request("r")), now=0.0)
    scheduler.handle(finished("r"), now=1.0)
    events: list[Event] = [
        finished("r"),
        failed("r"),
        FirstToken(RequestId("r")),
        Progressed(RequestId("r"), 5),
        Abandoned(RequestId("r")),
        Abandoned(RequestId("never seen")),
        BackendRemoved(BackendId("never seen")),
        TimePassed(),
    ]

    assert [scheduler.handle(event, now=2.0) for event in events] == [[]] * len(events)


def test_an_id_can_be_used_again_when_its_books_are_closed() -> None:
    scheduler = a_scheduler()
    scheduler.handle(Arrived(a_request("r")), now=0.0)
    scheduler.handle(finished("r"), now=1.0)

    assert starts(scheduler.handle(Arrived(a_request("r")), now=2.0)) == [("r", A)]


# Refusals


@pytest.mark.parametrize(
    ("request_fields", "reason"),
    [
        pytest.param({"model": "m9"}, RejectReason.MODEL_NOT_FOUND, id="nobody has the model"),
        pytest.param(
            {"eligible": frozenset({BackendId("x")})},
            RejectReason.NOT_SUPPORTED,
            id="nobody who has it offers the API",
        ),
        pytest.param({"prompt_tokens": 5000}, RejectReason.TOO_LARGE, id="no engine can hold it"),
        pytest.param(
            {"prompt_tokens": 1500}, RejectReason.NO_HEALTHY_BACKEND, id="who can hold it is down"
        ),
        pytest.param(
            {"eligible": frozenset({B})},
            RejectReason.NO_HEALTHY_BACKEND,
            id="who offers the API is down",
        ),
    ],
)
def test_what_nobody_can_serve_is_refused_at_once(
    request_fields: dict[str, object], reason: RejectReason
) -> None:
    small, large = (
        a_backend("a", profile=a_profile(kv_tokens=1000)),
        a_backend("b", profile=a_profile(kv_tokens=5000)),
    )
    scheduler = a_scheduler(small, large)
    scheduler.handle(BackendChanged(large, BackendState.DOWN), now=0.0)

    commands = scheduler.handle(
        Arrived(replace(a_request("r"), **request_fields)),  # type: ignore[arg-type] # by name
        now=1.0,
    )

    assert isinstance(commands[0], Reject)
    assert commands[0].reason is reason
    assert outcomes(commands) == {"r": (Outcome.REJECTED, reason)}
    assert scheduler.waiting == 0


def test_an_id_that_is_in_use_is_refused_and_its_owner_goes_on() -> None:
    scheduler = a_scheduler()
    scheduler.handle(Arrived(a_request("r")), now=0.0)

    commands = scheduler.handle(Arrived(a_request("r")), now=1.0)

    assert commands == [Reject(RequestId("r"), RejectReason.DUPLICATE_ID)]
    assert outcomes(scheduler.handle(finished("r"), now=2.0)) == {"r": (Outcome.COMPLETED, None)}


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    limits = QueueLimits(max_requests=1)
    scheduler = a_scheduler(a_backend("a", max_in_flight=1), limits=limits)
    scheduler.handle(Arrived(a_request("running", answer_tokens=100)), now=0.0)
    scheduler.handle(Arrived(a_request("waiting", answer_tokens=100)), now=0.0)

    reject, _ = scheduler.handle(Arrived(a_request("r")), now=1.0)

    assert isinstance(reject, Reject)
    assert reject.reason is RejectReason.QUEUE_FULL
    # Two calls of 10 s each, one at a time.
    assert reject.retry_after_s == pytest.approx(20.0, rel=0.01)


def test_one_tenant_cannot_fill_the_whole_queue() -> None:
    limits = QueueLimits(max_requests=4, max_tenant_share=0.5)
    scheduler = a_scheduler(a_backend("a", max_in_flight=1), limits=limits)
    for number in range(3):
        request = a_request(f"greedy{number}", tenant=tenant("greedy"))
        scheduler.handle(Arrived(request), now=0.0)

    refused = scheduler.handle(Arrived(a_request("more", tenant=tenant("greedy"))), now=1.0)
    taken = scheduler.handle(Arrived(a_request("other", tenant=tenant("modest"))), now=1.0)

    assert outcomes(refused) == {"more": (Outcome.REJECTED, RejectReason.TENANT_QUEUE_FULL)}
    assert outcomes(taken) == {}


def test_after_shutdown_began_nothing_new_is_taken_and_what_waits_still_runs() -> None:
    scheduler = a_scheduler(a_backend("a", max_in_flight=1))
    scheduler.handle(Arrived(a_request("first")), now=0.0)
    scheduler.handle(Arrived(a_request("second")), now=0.0)
    scheduler.handle(ShutdownBegan(), now=1.0)

    refused = scheduler.handle(Arrived(a_request("third")), now=2.0)

    assert outcomes(refused) == {"third": (Outcome.REJECTED, RejectReason.SHUTTING_DOWN)}
    assert starts(scheduler.handle(finished("first"), now=3.0)) == [("second", A)]


# Deadlines out of reach


def test_a_deadline_out_of_reach_may_be_refused() -> None:
    limits = QueueLimits(on_unreachable_deadline=Unreachable.REJECT)
    scheduler = a_scheduler(limits=limits)

    # 10 tokens take 1 s: 0.1 s for the prompt, 0.1 s for each token.
    late = scheduler.handle(Arrived(a_request("late", deadline_at=0.8)), now=0.0)
    in_time = scheduler.handle(Arrived(a_request("in time", deadline_at=1.3)), now=0.0)

    assert outcomes(late) == {"late": (Outcome.REJECTED, RejectReason.DEADLINE_UNREACHABLE)}
    assert starts(in_time) == [("in time", A)]


def test_what_the_workflow_still_has_to_do_must_fit_before_the_deadline_too() -> None:
    limits = QueueLimits(on_unreachable_deadline=Unreachable.REJECT)
    scheduler = a_scheduler(limits=limits)
    scheduler.workflows.templates.learn("t", [("plan", 1.0), ("write", 10.0)])

    late = a_workflow("late", template="t", stage="plan", deadline_s=9.0)
    in_time = a_workflow("in time", template="t", stage="plan", deadline_s=12.0)

    assert starts(scheduler.handle(Arrived(a_request("late", workflow=late)), now=0.0)) == []
    assert starts(scheduler.handle(Arrived(a_request("in time", workflow=in_time)), now=0.0)) == [
        ("in time", A)
    ]


def test_a_deadline_that_is_probably_missed_is_judged_by_the_whole_distribution() -> None:
    limits = QueueLimits(on_unreachable_deadline=Unreachable.REJECT, late_probability=0.6)
    scheduler = a_scheduler(limits=limits)
    forecast = LengthDistribution.from_samples([5, 5, 1000, 1000])  # late with probability 0.5

    commands = scheduler.handle(Arrived(a_request("r", output=forecast, deadline_at=5.0)), now=0.0)

    assert starts(commands) == [("r", A)]


def test_a_deadline_out_of_reach_may_cost_a_call_its_place() -> None:
    limits = QueueLimits(on_unreachable_deadline=Unreachable.DEMOTE)
    scheduler = a_scheduler(a_backend("a", max_in_flight=1), policy="edf", limits=limits)
    scheduler.handle(Arrived(a_request("running")), now=0.0)
    scheduler.handle(Arrived(a_request("hopeless", deadline_at=0.5)), now=0.0)
    scheduler.handle(Arrived(a_request("possible", deadline_at=50.0)), now=0.0)

    assert starts(scheduler.handle(finished("running"), now=1.0)) == [("possible", A)]


def test_by_default_a_call_that_will_be_late_is_served_as_if_it_were_not() -> None:
    scheduler = a_scheduler(a_backend("a", max_in_flight=1), policy="edf")
    scheduler.handle(Arrived(a_request("running")), now=0.0)
    scheduler.handle(Arrived(a_request("hopeless", deadline_at=0.5)), now=0.0)
    scheduler.handle(Arrived(a_request("possible", deadline_at=50.0)), now=0.0)

    assert starts(scheduler.handle(finished("running"), now=1.0)) == [("hopeless", A)]


# Failures


def test_a_failed_call_is_tried_on_another_backend() -> None:
    scheduler = a_scheduler(a_backend("a"), a_backend("b", profile=a_profile(slowness=1.1)))
    scheduler.handle(Arrived(a_request("r")), now=0.0)

    commands = scheduler.handle(failed("r"), now=1.0)

    assert starts(commands) == [("r", B)]
    (start,) = commands
    assert isinstance(start, Start)
    assert start.attempt == 2


def test_a_call_that_every_backend_has_failed_may_go_back_to_one() -> None:
    scheduler = a_scheduler(a_backend("a"), a_backend("b"))
    scheduler.handle(Arrived(a_request("r")), now=0.0)
    scheduler.handle(failed("r"), now=1.0)

    assert starts(scheduler.handle(failed("r"), now=2.0)) == []
    assert scheduler.wake_at is not None
    assert 2.0 < scheduler.wake_at < 2.1
    assert starts(scheduler.handle(TimePassed(), now=scheduler.wake_at)) == [("r", A)]


def test_the_third_failure_is_the_last() -> None:
    scheduler = a_scheduler(a_backend("a"), a_backend("b"))
    scheduler.handle(Arrived(a_request("r")), now=0.0)
    scheduler.handle(failed("r"), now=1.0)
    scheduler.handle(failed("r"), now=2.0)
    scheduler.handle(TimePassed(), now=2.5)

    commands = scheduler.handle(failed("r", FailureKind.CONNECT), now=3.0)

    assert outcomes(commands) == {"r": (Outcome.FAILED, FailureKind.CONNECT)}


def test_what_cannot_be_retried_is_not() -> None:
    scheduler = a_scheduler(a_backend("a"), a_backend("b"))
    scheduler.handle(Arrived(a_request("r")), now=0.0)

    commands = scheduler.handle(failed("r", retryable=False), now=1.0)

    assert outcomes(commands) == {"r": (Outcome.FAILED, FailureKind.RESET)}
    assert starts(commands) == []


def test_a_request_that_is_wrong_is_not_sent_anywhere_else() -> None:
    scheduler = a_scheduler(a_backend("a"), a_backend("b"))
    scheduler.handle(Arrived(a_request("r")), now=0.0)

    commands = scheduler.handle(failed("r", FailureKind.INVALID_REQUEST), now=1.0)

    assert outcomes(commands) == {"r": (Outcome.INVALID, FailureKind.INVALID_REQUEST)}


def test_a_try_that_failed_is_not_charged_to_its_tenant() -> None:
    backends = a_backend("a", max_in_flight=1), a_backend("b", max_in_flight=1)
    scheduler = a_scheduler(*backends)
    for number in range(2):
        for name in ("unlucky", "lucky"):
            request = a_request(f"{name}{number}", tenant=tenant(name))
            scheduler.handle(Arrived(request), now=0.0)

    commands = scheduler.handle(failed("unlucky0"), now=0.1)

    # It waits for b; the room on a is its tenant's, who has been served less.
    assert starts(commands) == [("unlucky1", A)]


@pytest.mark.parametrize("policy", ["least_backlog+fcfs", "edf", "srpt", "hexsage", "hexgen"])
def test_a_failed_call_keeps_its_old_place(policy: str) -> None:
    backends = a_backend("a", max_in_flight=1), a_backend("b", max_in_flight=1)
    scheduler = a_scheduler(*backends, policy=policy)
    for number in range(4):
        scheduler.handle(Arrived(a_request(f"r{number}")), now=float(number))

    scheduler.handle(failed("r0"), now=9.0)
    commands = scheduler.handle(finished("r1"), now=10.0)

    assert starts(commands)[0] == ("r0", B)


def test_a_clients_retry_keeps_the_place_of_its_first_try() -> None:
    scheduler = a_scheduler(a_backend("a", max_in_flight=1), policy="least_backlog+fcfs")
    scheduler.handle(Arrived(a_request("running")), now=0.0)
    scheduler.handle(Arrived(a_request("earlier")), now=50.0)
    scheduler.handle(Arrived(a_request("retried", first_seen_at=10.0)), now=60.0)

    assert starts(scheduler.handle(finished("running"), now=70.0)) == [("retried", A)]


# Time


def test_a_call_that_waits_too_long_is_evicted() -> None:
    scheduler = a_scheduler(a_backend("a", max_in_flight=1), limits=QueueLimits(timeout_s=30.0))
    scheduler.handle(Arrived(a_request("running")), now=0.0)
    scheduler.handle(Arrived(a_request("waiting")), now=5.0)
    assert scheduler.wake_at == 35.0

    assert scheduler.handle(TimePassed(), now=34.9) == []
    evict, settled = scheduler.handle(TimePassed(), now=35.0)

    assert isinstance(evict, Evict)
    assert evict.reason is RejectReason.QUEUE_TIMEOUT
    assert evict.retry_after_s is not None
    assert evict.retry_after_s >= 1.0
    assert isinstance(settled, Settle)
    assert settled.outcome is Outcome.EVICTED
    assert scheduler.wake_at is None


def test_a_timeout_that_is_due_is_seen_before_anything_else() -> None:
    limits = QueueLimits(max_requests=1, timeout_s=30.0)
    scheduler = a_scheduler(a_backend("a", max_in_flight=1), limits=limits)
    scheduler.handle(Arrived(a_request("running")), now=0.0)
    scheduler.handle(Arrived(a_request("overdue")), now=5.0)

    commands = scheduler.handle(Arrived(a_request("new")), now=40.0)

    assert outcomes(commands) == {"overdue": (Outcome.EVICTED, RejectReason.QUEUE_TIMEOUT)}
    assert scheduler.waiting == 1
    assert scheduler.wake_at is not None
    assert 40.0 < scheduler.wake_at <= 70.0


def test_each_try_has_a_timeout_of_its_own() -> None:
    backends = a_backend("a", max_in_flight=1), a_backend("b", max_in_flight=1)
    scheduler = a_scheduler(*backends, limits=QueueLimits(timeout_s=30.0))
    scheduler.handle(Arrived(a_request("on a")), now=0.0)
    scheduler.handle(Arrived(a_request("on b")), now=0.0)

    scheduler.handle(failed("on a"), now=20.0)

    assert scheduler.waiting == 1
    assert scheduler.wake_at == 50.0


def test_a_prompt_that_must_have_been_read_by_now_stands_in_nobodys_way() -> None:
    scheduler = a_scheduler()
    request = a_request("r", prompt_tokens=2000, reports_first_token=False)
    scheduler.handle(Arrived(request), now=0.0)
    load = scheduler.fleet.loads[A]
    assert load.pending_prefill_tokens == 2000

    scheduler.handle(TimePassed(), now=1.9)
    assert load.pending_prefill_tokens == 2000
    scheduler.handle(TimePassed(), now=2.0)

    assert load.pending_prefill_tokens == 0


def test_what_a_first_try_would_have_read_by_now_says_nothing_of_the_second() -> None:
    scheduler = a_scheduler(a_backend("a"), a_backend("b", profile=a_profile(slowness=3)))
    request = a_request("r", prompt_tokens=2000, reports_first_token=False)
    scheduler.handle(Arrived(request), now=0.0)
    assert starts(scheduler.handle(failed("r"), now=1.0)) == [("r", B)]

    scheduler.handle(TimePassed(), now=2.5)  # a would be done at 2, b is at 7

    assert scheduler.fleet.loads[B].pending_prefill_tokens == 2000


# Backends


def test_a_draining_backend_finishes_what_it_has_and_gets_nothing_new() -> None:
    first, second = a_backend("a"), a_backend("b", profile=a_profile(slowness=3))
    scheduler = a_scheduler(first, second)
    scheduler.handle(Arrived(a_request("before")), now=0.0)
    scheduler.handle(BackendChanged(first, BackendState.DRAINING), now=1.0)

    after = scheduler.handle(Arrived(a_request("after")), now=2.0)

    assert starts(after) == [("after", B)]
    assert outcomes(scheduler.handle(finished("before"), now=3.0)) == {
        "before": (Outcome.COMPLETED, None)
    }


def test_calls_bound_to_a_backend_that_goes_down_go_to_another() -> None:
    first, second = a_backend("a", max_in_flight=1), a_backend("b", max_in_flight=1)
    scheduler = a_scheduler(first, second, policy="hexgen")
    for number in range(3):
        scheduler.handle(Arrived(a_request(f"r{number}")), now=0.0)
    bound = next(load for load in scheduler.fleet.loads.values() if len(load.bound))
    other = next(load for load in scheduler.fleet.loads.values() if load is not bound)

    scheduler.handle(BackendChanged(bound.backend, BackendState.DOWN), now=1.0)

    assert len(bound.bound) == 0
    assert [call.id for call in other.bound] == ["r2"]


def test_calls_bound_to_a_backend_that_loses_their_model_go_to_another() -> None:
    first, second = a_backend("a", max_in_flight=1), a_backend("b", max_in_flight=1)
    scheduler = a_scheduler(first, second, policy="hexgen")
    for number in range(4):
        scheduler.handle(Arrived(a_request(f"r{number}")), now=0.0)
    assert len(scheduler.fleet.loads[A].bound) == 1

    scheduler.handle(BackendChanged(replace(first, models=frozenset({"m2"}))), now=1.0)

    assert len(scheduler.fleet.loads[A].bound) == 0
    assert len(scheduler.fleet.loads[B].bound) == 2


@pytest.mark.parametrize("policy", ["hexgen", "least_backlog+fcfs", "edf", "hexsage"])
def test_a_call_whose_only_backend_is_down_stands_in_nobodys_way(policy: str) -> None:
    first, second = a_backend("a", max_in_flight=1), a_backend("b", max_in_flight=1)
    scheduler = a_scheduler(first, second, policy=policy)
    for number in range(10):
        request = a_request(f"only a {number}", eligible=frozenset({A}), deadline_at=1.0)
        scheduler.handle(Arrived(request), now=0.0)
    scheduler.handle(BackendChanged(first, BackendState.DOWN), now=1.0)

    assert starts(scheduler.handle(Arrived(a_request("any")), now=2.0)) == [("any", B)]


def test_calls_that_waited_for_a_backend_to_come_back_are_not_passed_by_new_ones() -> None:
    backend = a_backend("a", max_in_flight=1)
    scheduler = a_scheduler(backend, policy="least_backlog+fcfs")
    for number in range(3):
        scheduler.handle(Arrived(a_request(f"r{number}")), now=float(number))
    scheduler.handle(BackendChanged(backend, BackendState.DOWN), now=4.0)
    scheduler.handle(failed("r0", retryable=False), now=4.0)
    assert starts(scheduler.handle(BackendChanged(backend), now=5.0)) == [("r1", A)]
    scheduler.handle(Arrived(a_request("r3")), now=6.0)

    assert starts(scheduler.handle(finished("r1"), now=7.0)) == [("r2", A)]


def test_a_prompt_is_never_sent_to_an_engine_that_cannot_hold_it() -> None:
    small = a_backend("a", profile=a_profile(kv_tokens=1000))
    large = a_backend("b", profile=a_profile(slowness=4, kv_tokens=9000), max_in_flight=1)
    scheduler = a_scheduler(small, large)
    scheduler.handle(Arrived(a_request("first", prompt_tokens=2000)), now=0.0)

    commands = scheduler.handle(Arrived(a_request("second", prompt_tokens=2000)), now=0.0)

    assert starts(commands) == []
    assert starts(scheduler.handle(finished("first"), now=9.0)) == [("second", B)]


def test_a_call_held_back_for_a_fast_backend_goes_when_that_one_is_removed() -> None:
    fast = a_backend("a", max_in_flight=1)
    slow = a_backend("b", profile=a_profile(slowness=30))
    scheduler = a_scheduler(fast, slow)
    scheduler.handle(Arrived(a_request("running")), now=0.0)
    assert starts(scheduler.handle(Arrived(a_request("held")), now=0.0)) == []

    assert starts(scheduler.handle(BackendRemoved(A), now=1.0)) == [("held", B)]


def test_a_removed_backends_calls_finish() -> None:
    scheduler = a_scheduler(a_backend("a"), a_backend("b"))
    scheduler.handle(Arrived(a_request("r")), now=0.0)
    scheduler.handle(BackendRemoved(A), now=1.0)

    commands = scheduler.handle(finished("r"), now=2.0)

    assert outcomes(commands) == {"r": (Outcome.COMPLETED, None)}
    assert scheduler.running == 0


def test_a_backend_that_joins_takes_what_waits() -> None:
    scheduler = a_scheduler(a_backend("a", max_in_flight=1))
    for name in ("running", "waiting"):
        scheduler.handle(Arrived(a_request(name)), now=0.0)

    assert starts(scheduler.handle(BackendChanged(a_backend("b")), now=1.0)) == [("waiting", B)]


# Policies


def test_a_new_policy_orders_what_waits_anew() -> None:
    scheduler = a_scheduler(a_backend("a", max_in_flight=1), policy="edf")
    scheduler.handle(Arrived(a_request("running")), now=0.0)
    scheduler.handle(Arrived(a_request("long", answer_tokens=500, deadline_at=5.0)), now=0.0)
    scheduler.handle(Arrived(a_request("short", answer_tokens=5, deadline_at=9.0)), now=0.0)

    scheduler.handle(PolicyChanged(policy_from_name("srpt")), now=1.0)

    assert starts(scheduler.handle(finished("running"), now=2.0)) == [("short", A)]


def test_room_that_a_new_policy_makes_is_filled_in_its_order() -> None:
    profile = a_profile(kv_tokens=1000)
    scheduler = Scheduler(
        [a_backend("a", profile=profile)],
        policy_from_name("edf", PolicySettings(budget_share=0.1)),
    )
    for name, deadline_at in (("running", 1.0), ("relaxed", 90.0), ("urgent", 20.0)):
        request = a_request(name, prompt_tokens=400, deadline_at=deadline_at)
        scheduler.handle(Arrived(request), now=0.0)
    assert scheduler.waiting == 2

    commands = scheduler.handle(PolicyChanged(policy_from_name("edf")), now=1.0)

    assert starts(commands) == [("urgent", A)]


@pytest.mark.parametrize("policy", ["edf", "hexgen", "hexsage"])
def test_the_engine_is_told_who_goes_first(policy: str) -> None:
    scheduler = a_scheduler(a_backend("a", priority_scheduling=True), policy=policy)
    ranks = []
    for name, deadline_at in (("relaxed", 90.0), ("urgent", 20.0)):
        (start,) = scheduler.handle(Arrived(a_request(name, deadline_at=deadline_at)), now=0.0)
        assert isinstance(start, Start)
        ranks.append(start.engine_priority)

    if policy == "hexgen":  # urgency: it must start a second, its own time, before the deadline
        assert ranks == [89_000, 19_000]
    else:
        assert ranks == [90_000, 20_000]


def test_an_engine_priority_stays_within_what_json_carries() -> None:
    scheduler = a_scheduler(policy="edf")

    (start,) = scheduler.handle(Arrived(a_request("r", deadline_at=1e30)), now=0.0)

    assert isinstance(start, Start)
    assert start.engine_priority == MAX_ENGINE_PRIORITY


# Decisions


def test_a_decision_says_why() -> None:
    scheduler = a_scheduler(
        a_backend("a", max_in_flight=1), a_backend("b", profile=a_profile(slowness=2))
    )
    forecast = LengthDistribution.from_samples([8, 8, 8, 8, 8, 8, 8, 8, 100, 100])
    scheduler.handle(Arrived(a_request("first")), now=0.0)

    (start,) = scheduler.handle(
        Arrived(a_request("second", output=forecast, deadline_at=100.0)), now=40.0
    )

    assert isinstance(start, Start)
    decision = start.decision
    assert (decision.request_id, decision.backend_id, decision.policy) == ("second", B, "hexsage")
    assert set(decision.scores) == {A, B}
    assert decision.full == {A}
    assert decision.decided_at == 40.0
    assert decision.order_key == 100.0
    assert decision.budget_s == 60.0
    assert decision.laxity_s == pytest.approx(60.0 - decision.predicted_s)
    assert decision.output_tokens_p50 <= 8 < 91 < decision.output_tokens_p90 <= 107


@pytest.mark.parametrize("policy", ["hexsage", "hexgen"])
def test_a_decision_says_how_long_the_call_waited_and_by_which_key(policy: str) -> None:
    scheduler = a_scheduler(a_backend("a", max_in_flight=1), policy=policy)
    scheduler.handle(Arrived(a_request("first")), now=0.0)
    scheduler.handle(Arrived(a_request("second")), now=1.0)
    key = scheduler.calls["second"].order_key

    commands = scheduler.handle(finished("first"), now=8.0)

    (start,) = (c for c in commands if isinstance(c, Start))
    assert start.decision.queue_s == 7.0
    assert start.decision.order_key == key > 0


def test_a_backend_that_was_never_reached_may_have_any_model() -> None:
    unseen = a_backend("b", models=frozenset())
    scheduler = a_scheduler(a_backend("a"))
    scheduler.handle(BackendChanged(unseen, BackendState.DOWN), now=0.0)

    commands = scheduler.handle(Arrived(a_request("r", model="m9")), now=1.0)

    assert isinstance(commands[0], Reject)
    assert commands[0].reason is RejectReason.NO_HEALTHY_BACKEND
