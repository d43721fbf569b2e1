"""Who waits, and until when: lines of those that may wait equally long."""

from gateway.core.admission import QueueLimits
from gateway.core.call import CallState
from gateway.core.commands import Command, Evict
from gateway.core.events import Arrived, Reconfigured, TimePassed
from gateway.core.outcomes import RejectReason
from gateway.core.policies import policy_from_name
from gateway.core.scheduler import Scheduler
from gateway.core.waits import SLACK, Waits
from tests.builders import a_backend, a_call, a_request
from tests.core.referee import Referee


def evicted(commands: list[Command]) -> list[tuple[str, RejectReason]]:
    """Who was turned out, and why."""
    return [(c.request_id, c.reason) for c in commands if isinstance(c, Evict)]


def test_who_may_wait_less_goes_before_who_came_earlier() -> None:
    waits = Waits()
    patient, hasty = a_call("patient"), a_call(request=a_request("hasty", queue_timeout_s=2.0))
    waits.add(patient, 0.0)
    waits.add(hasty, 1.0)

    assert waits.next_at(10.0) == 3.0
    assert list(waits.due(10.0, 2.9)) == []
    assert list(waits.due(10.0, 10.0)) == [hasty, patient]
    assert waits.next_at(10.0) is None


def test_who_waits_no_longer_is_nobodys_next() -> None:
    waits = Waits()
    gone, here = a_call("gone"), a_call("here")
    waits.add(gone, 0.0)
    waits.add(here, 1.0)
    gone.state = CallState.RUNNING

    assert waits.latest_first() == [here]
    assert waits.next_at(10.0) == 11.0


def test_who_waits_anew_waits_from_then_on() -> None:
    waits = Waits()
    call = a_call()
    waits.add(call, 0.0)
    waits.add(call, 4.0)

    assert waits.next_at(10.0) == 14.0


def test_those_who_are_gone_do_not_pile_up_behind_one_who_waits() -> None:
    waits = Waits()
    first, last = a_call("first"), a_call("last")
    waits.add(first, 0.0)
    for number in range(10 * SLACK):
        gone = a_call(f"gone {number}")
        waits.add(gone, 1.0)
        gone.state = CallState.RUNNING
        assert len(waits) <= 2 + SLACK
    waits.add(last, 2.0)

    assert waits.latest_first() == [last, first]


def test_a_model_may_have_calls_that_wait_for_longer_or_less_than_the_queue_allows() -> None:
    scheduler = Scheduler(
        [a_backend("a", max_in_flight=1)],
        policy_from_name("least_backlog+fcfs"),
        limits=QueueLimits(timeout_s=10.0),
    )
    referee = Referee(scheduler)
    for name, timeout_s in (("runs", None), ("long", 50.0), ("as usual", None), ("short", 3.0)):
        referee.feed(Arrived(a_request(name, queue_timeout_s=timeout_s)), 0.0)

    assert scheduler.wake_at == 3.0
    assert evicted(referee.feed(TimePassed(), 3.0)) == [("short", RejectReason.QUEUE_TIMEOUT)]
    assert evicted(referee.feed(TimePassed(), 10.0)) == [("as usual", RejectReason.QUEUE_TIMEOUT)]
    assert evicted(referee.feed(Reconfigured(limits=QueueLimits(timeout_s=1.0)), 11.0)) == []
    assert evicted(referee.feed(TimePassed(), 50.0)) == [("long", RejectReason.QUEUE_TIMEOUT)]
