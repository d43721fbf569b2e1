"""Trends: the last half hour in slots of ten seconds. An observer."""

from collections import deque
from collections.abc import Sequence

from gateway.core.commands import Command, Settle, WorkflowEnded
from gateway.core.events import Arrived, Event, PolicyChanged
from gateway.core.outcomes import Outcome, RejectReason
from gateway.core.policies.base import Policy
from gateway.telemetry.digest import Digest

SLOT_S = 10.0
MAX_SLOTS = 180
MAX_POLICIES = 100
NO_FAULT = frozenset({Outcome.COMPLETED, Outcome.ABANDONED, Outcome.CANCELLED, Outcome.INVALID})
CLIENTS_MISTAKES = frozenset(
    {
        RejectReason.MODEL_NOT_FOUND,
        RejectReason.NOT_SUPPORTED,
        RejectReason.TOO_LARGE,
        RejectReason.STAGE_NOT_READY,
        RejectReason.WORKFLOW_CLOSED,
        RejectReason.WORKFLOW_CANCELLED,
        RejectReason.DUPLICATE_ID,
    }
)
"""Refusals that no fleet could have kept from happening: one typo must not look like an outage."""
"""Endings that are no failure of the gateway or its backends."""


class Slot:
    """What ended within one slot of time."""

    __slots__ = (
        "arrived",
        "call_s",
        "completed",
        "failed",
        "first_token_s",
        "late",
        "met",
        "number",
        "output_tokens",
        "predicted_tokens",
        "queue_s",
        "workflow_s",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        """It begins at this many times SLOT_S."""
        self.arrived = 0
        self.completed = 0
        self.failed = 0
        """Failed, rejected and evicted calls, clients' mistakes apart."""
        self.met = 0
        self.late = 0
        """Deadlines of workflows and of lone calls; those that failed have missed theirs."""
        self.output_tokens = 0
        self.predicted_tokens = 0.0
        """Of completed calls."""
        self.queue_s = Digest()
        self.first_token_s = Digest()
        self.call_s = Digest()
        self.workflow_s = Digest()


class Trends:
    """Slots, newest last; empty ones too, so that silence shows as silence."""

    def __init__(self, policy: Policy, now: float) -> None:
        self._slots: deque[Slot] = deque([Slot(_number(now))], maxlen=MAX_SLOTS)
        self.policies: deque[tuple[float, Policy]] = deque([(now, policy)], maxlen=MAX_POLICIES)
        """The policies in force, and since when."""

    def observe(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Count what has ended."""
        if isinstance(event, Arrived):
            self._slot(now).arrived += 1
        elif isinstance(event, PolicyChanged):
            self.policies.append((now, event.policy))
        for command in commands:
            if isinstance(command, Settle):
                _settle(self._slot(now), command)
            elif isinstance(command, WorkflowEnded):
                _end_workflow(self._slot(now), command)

    def slots(self, now: float, count: int = MAX_SLOTS) -> list[Slot]:
        """Return the latest slots, newest last; the last one is not over yet."""
        self._slot(now)
        return list(self._slots)[-count:]

    def _slot(self, now: float) -> Slot:
        number = _number(now)
        for missing in range(max(self._slots[-1].number, number - MAX_SLOTS) + 1, number + 1):
            self._slots.append(Slot(missing))
        return self._slots[-1]


def _number(now: float) -> int:
    return int(now // SLOT_S)


def _settle(slot: Slot, settle: Settle) -> None:
    is_fault = settle.outcome not in NO_FAULT and settle.reason not in CLIENTS_MISTAKES
    if is_fault:
        slot.failed += 1
    if settle.started_at is not None:
        slot.queue_s.add(settle.started_at - settle.arrived_at)
    is_done = settle.outcome is Outcome.COMPLETED
    if is_done:
        slot.completed += 1
        slot.output_tokens += settle.output_tokens
        slot.predicted_tokens += settle.predicted_output_tokens
        slot.call_s.add(settle.ended_at - settle.arrived_at)
        if settle.first_token_at is not None:
            slot.first_token_s.add(settle.first_token_at - settle.arrived_at)
    if settle.workflow is None and settle.deadline_at is not None:
        if is_done and settle.ended_at <= settle.deadline_at:
            slot.met += 1
        elif is_done or is_fault:
            slot.late += 1


def _end_workflow(slot: Slot, ended: WorkflowEnded) -> None:
    if ended.state == "cancelled":
        return
    if ended.state != "failed":
        slot.workflow_s.add(ended.ended_at - ended.opened_at)
    if ended.deadline_at is not None:
        if ended.is_late or ended.state == "failed":
            slot.late += 1
        else:
            slot.met += 1
