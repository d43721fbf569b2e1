"""Queue limits as clients meet them: who may wait, who starts at once, who is refused."""

from dataclasses import replace

from gateway.core.admission import QueueLimits
from gateway.core.commands import Command, Reject, Settle, Start
from gateway.core.events import Arrived, BackendChanged
from gateway.core.outcomes import RejectReason
from gateway.core.policies import policy_from_name
from gateway.core.scheduler import Scheduler
from gateway.core.types import Backend, BackendState
from tests.builders import a_backend, a_profile, a_request

NO_QUEUE = QueueLimits(max_requests=0)


def a_scheduler(*backends: Backend, limits: QueueLimits, policy: str = "hexsage") -> Scheduler:
    """A scheduler with such limits."""
    return Scheduler(backends, policy_from_name(policy), limits=limits)


def refusals(commands: list[Command]) -> list[RejectReason]:
    """Why calls were turned away; each of them is settled, too."""
    rejects = [command for command in commands if isinstance(command, Reject)]
    settled = [c.request_id for c in commands if isinstance(c, Settle)]
    assert settled == [reject.request_id for reject in rejects]
    assert all(reject.retry_after_s is not None for reject in rejects)
    return [reject.reason for reject in rejects]


def test_without_a_queue_a_call_starts_at_once_or_is_refused() -> None:
    for policy in ("hexsage", "hexgen", "least_backlog+fcfs"):
        scheduler = a_scheduler(a_backend("a", max_in_flight=1), limits=NO_QUEUE, policy=policy)

        (start,) = scheduler.handle(Arrived(a_request("first")), now=0.0)
        assert isinstance(start, Start)
        commands = scheduler.handle(Arrived(a_request("second")), now=1.0)

        assert refusals(commands) == [RejectReason.QUEUE_FULL]
        assert (scheduler.waiting, scheduler.running) == (0, 1)


def test_a_call_that_finds_room_need_not_wait_where_the_queue_is_full() -> None:
    backends = (
        a_backend("a", models=frozenset({"busy"}), max_in_flight=1),
        a_backend("b", models=frozenset({"quiet"}), max_in_flight=1),
    )
    scheduler = a_scheduler(*backends, limits=QueueLimits(max_requests=1))
    for name in ("runs", "waits"):
        scheduler.handle(Arrived(a_request(name, model="busy")), now=0.0)

    (start,) = scheduler.handle(Arrived(a_request("quiet", model="quiet")), now=1.0)

    assert isinstance(start, Start)
    commands = scheduler.handle(Arrived(a_request("one more", model="busy")), now=2.0)
    assert refusals(commands) == [RejectReason.QUEUE_FULL]


def test_room_that_others_wait_for_is_not_had_by_who_may_not_wait() -> None:
    """The first in line needs more room than there is; who is behind it is refused, not queued."""
    profile = a_profile(kv_tokens=1000)
    scheduler = a_scheduler(
        a_backend("a", profile=profile), limits=QueueLimits(max_requests=1), policy="edf"
    )
    scheduler.handle(Arrived(a_request("runs", prompt_tokens=500)), now=0.0)
    scheduler.handle(Arrived(a_request("large", prompt_tokens=900)), now=1.0)

    commands = scheduler.handle(Arrived(a_request("small", prompt_tokens=10)), now=2.0)

    assert refusals(commands) == [RejectReason.QUEUE_FULL]
    assert (scheduler.waiting, scheduler.running) == (1, 1)


def test_where_calls_are_bound_at_arrival_no_backend_has_more_than_its_share_waiting() -> None:
    limits = QueueLimits(max_requests=8, max_backend_share=0.25)
    fast, slow = a_profile(), replace(a_profile(), decode_base_s=10.0)
    scheduler = a_scheduler(
        a_backend("fast", profile=fast, max_in_flight=1),
        a_backend("slow", profile=slow, max_in_flight=1),
        limits=limits,
        policy="alpha_balanced+urgency",
    )

    commands = [
        command
        for number in range(8)
        for command in scheduler.handle(Arrived(a_request(f"r{number}")), now=0.0)
    ]

    assert [len(load.bound) for load in scheduler.fleet.loads.values()] == [2, 2]
    assert refusals(commands) == [RejectReason.QUEUE_FULL] * 2


def test_what_is_refused_for_lack_of_a_queue_is_settled_once() -> None:
    scheduler = a_scheduler(a_backend("a", max_in_flight=1), limits=NO_QUEUE)
    scheduler.handle(Arrived(a_request("runs")), now=0.0)
    scheduler.handle(Arrived(a_request("no")), now=1.0)

    commands = scheduler.handle(BackendChanged(a_backend("b"), BackendState.UP), now=2.0)

    assert commands == []
    (start,) = scheduler.handle(Arrived(a_request("no")), now=3.0)
    assert isinstance(start, Start)
