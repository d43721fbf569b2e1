"""The last half hour, slot by slot."""

from dataclasses import replace

import pytest

from gateway.core.commands import Command, WorkflowEnded
from gateway.core.events import Arrived, PolicyChanged, TimePassed
from gateway.core.outcomes import Outcome, RejectReason
from gateway.core.policies import policy_from_name
from gateway.core.types import ANONYMOUS, WorkflowKey
from gateway.telemetry.trends import MAX_SLOTS, SLOT_S, Trends
from tests.builders import a_request
from tests.telemetry.test_counters import a_settle

POLICY = policy_from_name("hexsage")


def an_end(*, late: bool = False, state: str = "completed") -> WorkflowEnded:
    return WorkflowEnded(
        key=WorkflowKey(ANONYMOUS, "w"),
        name="t",
        state=state,
        opened_at=0.0,
        ended_at=9.0 if late else 4.0,
        deadline_at=5.0,
        calls=1,
    )


def test_what_ends_is_counted_in_the_slot_in_which_it_ends() -> None:
    trends = Trends(POLICY, now=0.0)
    trends.observe(1.0, Arrived(a_request("r")), [])
    trends.observe(14.0, TimePassed(), [a_settle()])

    first, second = trends.slots(15.0)
    assert (first.arrived, first.completed) == (1, 0)
    assert (second.arrived, second.completed) == (0, 1)
    assert (second.output_tokens, second.predicted_tokens) == (20, 25.0)
    assert second.call_s.quantile(0.5) == pytest.approx(4.0, rel=0.05)
    assert second.queue_s.quantile(0.5) == pytest.approx(0.5, rel=0.05)
    assert second.first_token_s.quantile(0.5) == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize(
    ("command", "met", "late"),
    [
        pytest.param(an_end(), 1, 0, id="a workflow in time"),
        pytest.param(an_end(late=True), 0, 1, id="a late workflow"),
        pytest.param(an_end(state="failed"), 0, 1, id="a failed workflow has missed its deadline"),
        pytest.param(an_end(state="cancelled"), 0, 0, id="a cancelled one had none to meet"),
        pytest.param(a_settle(deadline_at=20.0), 1, 0, id="a lone call in time"),
        pytest.param(a_settle(deadline_at=13.0), 0, 1, id="a late lone call"),
        pytest.param(a_settle(), 0, 0, id="a lone call without a deadline"),
        pytest.param(
            a_settle(Outcome.REJECTED, deadline_at=20.0), 0, 1, id="a refused call missed it"
        ),
        pytest.param(
            a_settle(Outcome.REJECTED, reason=RejectReason.MODEL_NOT_FOUND, deadline_at=20.0),
            0,
            0,
            id="a client's mistake is no deadline missed",
        ),
        pytest.param(
            a_settle(Outcome.ABANDONED, deadline_at=20.0), 0, 0, id="who left waits for nothing"
        ),
        pytest.param(
            replace(a_settle(deadline_at=20.0), workflow=WorkflowKey(ANONYMOUS, "w")),
            0,
            0,
            id="a call of a workflow counts with that",
        ),
    ],
)
def test_a_deadline_is_counted_once(command: Command, met: int, late: int) -> None:
    trends = Trends(POLICY, now=0.0)
    trends.observe(1.0, TimePassed(), [command])

    (slot,) = trends.slots(1.0)
    assert (slot.met, slot.late) == (met, late)


def test_silence_leaves_empty_slots_and_never_more_than_there_is_room_for() -> None:
    trends = Trends(POLICY, now=0.0)
    assert [slot.number for slot in trends.slots(35.0)] == [0, 1, 2, 3]

    much_later = trends.slots(1_000_000 * SLOT_S)
    assert len(much_later) == MAX_SLOTS
    assert [slot.number for slot in much_later] == list(range(1_000_001 - MAX_SLOTS, 1_000_001))


def test_failures_are_told_from_those_who_left() -> None:
    trends = Trends(POLICY, now=0.0)
    endings = [a_settle(outcome) for outcome in Outcome]
    trends.observe(1.0, TimePassed(), endings)

    (slot,) = trends.slots(1.0)
    assert (slot.completed, slot.failed) == (1, 3)


def test_it_knows_which_policy_was_in_force_since_when() -> None:
    trends = Trends(POLICY, now=0.0)
    other = policy_from_name("hexgen")
    trends.observe(7.0, PolicyChanged(other), [])

    assert list(trends.policies) == [(0.0, POLICY), (7.0, other)]


def test_a_refusal_is_a_failure_unless_the_client_was_wrong() -> None:
    trends = Trends(POLICY, now=0.0)
    for reason in (RejectReason.TOO_LARGE, RejectReason.QUEUE_FULL):
        trends.observe(1.0, TimePassed(), [a_settle(Outcome.REJECTED, reason=reason)])

    (slot,) = trends.slots(1.0)
    assert slot.failed == 1
