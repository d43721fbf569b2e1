"""Where a stage, and a workflow, stands: every state, and every transition there is."""

from collections.abc import Mapping
from enum import StrEnum


class IllegalTransition(Exception):
    """A bug: something happened to a stage that cannot happen in its state."""


class StageState(StrEnum):
    """Where one stage of one workflow stands."""

    __hash__ = str.__hash__  # an enum's own is slow Python, and these are keys

    BLOCKED = "blocked"
    """A declared prerequisite is open: its calls are held."""
    READY = "ready"
    RUNNING = "running"
    """Some of its calls are queued or running."""
    ANSWERED = "answered"
    """Every call so far is back; it may be repeated."""
    DONE = "done"
    SKIPPED = "skipped"
    """Its workflow ended without it."""
    CANCELLED = "cancelled"


class StageEvent(StrEnum):
    """What can happen to a stage."""

    __hash__ = str.__hash__  # an enum's own is slow Python, and these are keys

    UNBLOCKED = "unblocked"
    CALLED = "called"
    ANSWERED = "answered"
    """Its last open call is back."""
    BROKE = "broke"
    """Its last open call failed and nothing of it was answered."""
    CLOSED = "closed"
    """Its workflow ended."""
    CANCELLED = "cancelled"


NEXT: Mapping[StageState, Mapping[StageEvent, StageState]] = {
    StageState.BLOCKED: {
        StageEvent.UNBLOCKED: StageState.READY,
        StageEvent.CLOSED: StageState.SKIPPED,
        StageEvent.CANCELLED: StageState.CANCELLED,
    },
    StageState.READY: {
        StageEvent.CALLED: StageState.RUNNING,
        StageEvent.CLOSED: StageState.SKIPPED,
        StageEvent.CANCELLED: StageState.CANCELLED,
    },
    StageState.RUNNING: {
        StageEvent.CALLED: StageState.RUNNING,
        StageEvent.ANSWERED: StageState.ANSWERED,
        StageEvent.BROKE: StageState.READY,
        StageEvent.CANCELLED: StageState.CANCELLED,
    },
    StageState.ANSWERED: {
        StageEvent.CALLED: StageState.RUNNING,
        StageEvent.CLOSED: StageState.DONE,
        StageEvent.CANCELLED: StageState.CANCELLED,
    },
    StageState.DONE: {},
    StageState.SKIPPED: {},
    StageState.CANCELLED: {},
}


class WorkflowState(StrEnum):
    """Where a workflow stands."""

    __hash__ = str.__hash__  # an enum's own is slow Python, and these are keys

    OPEN = "open"
    COMPLETED = "completed"
    FAILED = "failed"
    """It was closed and its last call had failed."""
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """It went idle without a final call."""


class WorkflowEvent(StrEnum):
    """What can end a workflow."""

    __hash__ = str.__hash__  # an enum's own is slow Python, and these are keys

    CLOSED = "closed"
    BROKE = "broke"
    CANCELLED = "cancelled"
    WENT_IDLE = "went_idle"


WORKFLOW_NEXT: Mapping[WorkflowState, Mapping[WorkflowEvent, WorkflowState]] = {
    WorkflowState.OPEN: {
        WorkflowEvent.CLOSED: WorkflowState.COMPLETED,
        WorkflowEvent.BROKE: WorkflowState.FAILED,
        WorkflowEvent.CANCELLED: WorkflowState.CANCELLED,
        WorkflowEvent.WENT_IDLE: WorkflowState.EXPIRED,
    },
    WorkflowState.COMPLETED: {},
    WorkflowState.FAILED: {},
    WorkflowState.CANCELLED: {},
    WorkflowState.EXPIRED: {},
}


def advance(state: StageState, event: StageEvent) -> StageState:
    """Return the state of a stage after `event`."""
    try:
        return NEXT[state][event]
    except KeyError:
        raise IllegalTransition(f"a {state} stage cannot be {event}") from None


def end(state: WorkflowState, event: WorkflowEvent) -> WorkflowState:
    """Return the state of a workflow after `event`."""
    try:
        return WORKFLOW_NEXT[state][event]
    except KeyError:
        raise IllegalTransition(f"a {state} workflow cannot be {event}") from None
