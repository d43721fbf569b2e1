"""What to do: everything the scheduler can ask of its driver."""

from dataclasses import dataclass

from gateway.core.outcomes import FailureKind, Outcome, RejectReason
from gateway.core.types import BackendId, Decision, RequestId, TenantId, WorkflowKey


@dataclass(frozen=True, slots=True)
class Start:
    """Send the call to the backend now. After a retryable failure a call is started again."""

    request_id: RequestId
    backend_id: BackendId
    engine_priority: int
    """vLLM's `priority`, lower is sooner; send it only where the engine takes it."""
    decision: Decision
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Reject:
    """Tell the client no: the request was not queued."""

    request_id: RequestId
    reason: RejectReason
    retry_after_s: float | None = None
    """Predicted time until there is room; None when waiting does not help."""


@dataclass(frozen=True, slots=True)
class Evict:
    """Tell the client no: the request was held or queued, and is so no longer."""

    request_id: RequestId
    reason: RejectReason
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Close the running call's connection to its backend; the scheduler has forgotten it."""

    request_id: RequestId
    backend_id: BackendId
    reason: RejectReason | None = None
    """Why, when its client is still there to be told; None: the client left."""


@dataclass(frozen=True, slots=True)
class Recall:
    """If no byte has reached the client, close the connection and report a retryable failure."""

    request_id: RequestId
    backend_id: BackendId


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """The request's books are closed: emitted exactly once for each request that arrived."""

    request_id: RequestId
    outcome: Outcome
    reason: RejectReason | FailureKind | None
    tenant: TenantId
    model: str
    workflow: WorkflowKey | None
    workflow_name: str | None
    stage: str | None
    backend_id: BackendId | None
    """Where it last ran."""
    attempts: int
    arrived_at: float
    started_at: float | None
    """When its last attempt was started."""
    first_token_at: float | None
    ended_at: float
    prompt_tokens: int
    """The engine's own count where it told one, else the estimate."""
    output_tokens: int
    predicted_output_tokens: float
    predicted_s: float | None
    """Predicted execution time when it was started."""
    deadline_at: float | None
    """The instant by which it (or its workflow) had to be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowEnded:
    """A workflow's books are closed: emitted exactly once for each workflow opened."""

    key: WorkflowKey
    name: str | None
    state: str
    """completed, failed, cancelled or expired."""
    opened_at: float
    ended_at: float
    """When its last call ended (a workflow closed by idleness ended before now)."""
    deadline_at: float | None
    calls: int

    @property
    def is_late(self) -> bool:
        """Whether it ended after its deadline."""
        return self.deadline_at is not None and self.ended_at > self.deadline_at


Command = Start | Reject | Evict | Stop | Recall | Settle | WorkflowEnded
