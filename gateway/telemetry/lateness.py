"""Why an answer came after its deadline (pure)."""

from enum import StrEnum

from gateway.core.commands import Settle

FAR = 1.5
"""Beyond its forecast by this factor, a length or a duration counts as unforeseen."""


class Cause(StrEnum):
    """What made an answer late; the first that applies."""

    QUEUE = "queue"
    """Without the waiting it would have been in time."""
    LENGTH = "length"
    """The answer was far longer than predicted."""
    BACKEND = "backend"
    """It took the backend far longer than predicted, though the answer was no longer."""
    DEADLINE = "deadline"
    """All went as predicted: the deadline was too near when the call came."""


def cause_of(settle: Settle) -> Cause | None:
    """Return why a completed call is late; None: it is not."""
    if settle.deadline_at is None or settle.ended_at <= settle.deadline_at:
        return None
    if settle.started_at is None:
        return Cause.QUEUE
    waited_s = settle.started_at - settle.arrived_at
    if settle.ended_at - waited_s <= settle.deadline_at:
        return Cause.QUEUE
    if settle.output_tokens > FAR * settle.predicted_output_tokens:
        return Cause.LENGTH
    took_s = settle.ended_at - settle.started_at
    if settle.predicted_s is not None and took_s > FAR * settle.predicted_s:
        return Cause.BACKEND
    return Cause.DEADLINE
