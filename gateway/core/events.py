"""What has happened: everything the scheduler can be told."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.core.outcomes import FailureKind
from gateway.core.types import (
    Backend,
    BackendId,
    BackendState,
    InferenceRequest,
    RequestId,
    WorkflowKey,
)

if TYPE_CHECKING:
    from gateway.core.admission import QueueLimits
    from gateway.core.breaker import HealthRules
    from gateway.core.policies.base import Policy
    from gateway.core.retries import RetryRules
    from gateway.core.specs import WorkflowSpec


@dataclass(frozen=True, slots=True)
class Arrived:
    """A client asks for something. Its id must not be in use."""

    request: InferenceRequest


@dataclass(frozen=True, slots=True)
class FirstToken:
    """A running call's answer has begun."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class Progressed:
    """A running call has produced this many tokens so far. Sent at bucket boundaries, if at all."""

    request_id: RequestId
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A running call's answer is complete. Token counts are the engine's own where it told them."""

    request_id: RequestId
    output_tokens: int
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A running call broke. `retryable`: no byte has reached the client and no work goes on."""

    request_id: RequestId
    kind: FailureKind
    retryable: bool
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A client left; its request may be held, queued or running."""

    request_id: RequestId
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class BackendChanged:
    """A backend is new, or its configuration, profile or state is now this."""

    backend: Backend
    state: BackendState = BackendState.UP


@dataclass(frozen=True, slots=True)
class BackendRemoved:
    """A backend left the configuration. Its running calls finish; queued ones go elsewhere."""

    backend_id: BackendId


@dataclass(frozen=True, slots=True)
class BackendTrusted:
    """An operator says that a backend is well, whatever its calls have told."""

    backend_id: BackendId


@dataclass(frozen=True, slots=True)
class Heard:
    """A backend's streams go on, or only their clients hold them up. Said now and then."""

    backend_id: BackendId


@dataclass(frozen=True, slots=True)
class EngineLooked:
    """A probe has looked at a backend's engine; `waiting` calls are in the engine's own queue."""

    backend_id: BackendId
    waiting: int | None
    """None: it does not say."""


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """From now on decide by this policy; what is queued is ordered anew."""

    policy: "Policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconfigured:
    """From now on these rules hold, for what waits already, too. None: as before."""

    limits: "QueueLimits | None" = None
    weights: Mapping[str, float] | None = None
    """Tenants' weights in fair queueing; 1 for those that are not named."""
    health: "HealthRules | None" = None
    retries: "RetryRules | None" = None
    workflows: "Mapping[str, WorkflowSpec] | None" = None
    """Those that are declared; runs that are open keep what they began with."""
    default_deadline_s: float | None = None
    """Of workflows without a deadline; read where `workflows` is given."""


@dataclass(frozen=True, slots=True)
class WorkflowDeclared:
    """A client declares a workflow before its first call."""

    key: WorkflowKey
    spec: "WorkflowSpec"
    deadline_s: float | None = None
    strict: bool = False
    """Calls of a stage whose prerequisites are open are refused instead of held."""


@dataclass(frozen=True, slots=True)
class WorkflowCompleted:
    """A client says that no further call of this workflow will come."""

    key: WorkflowKey


@dataclass(frozen=True, slots=True)
class WorkflowCancelled:
    """Stop everything of this workflow: held, queued and running calls."""

    key: WorkflowKey


@dataclass(frozen=True, slots=True)
class ShutdownBegan:
    """No new requests; what is queued may still run."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The instant that `Scheduler.wake_at` named has come: look at timeouts."""


Event = (
    Arrived
    | FirstToken
    | Progressed
    | Finished
    | Failed
    | Abandoned
    | BackendChanged
    | BackendRemoved
    | BackendTrusted
    | Heard
    | EngineLooked
    | PolicyChanged
    | Reconfigured
    | WorkflowDeclared
    | WorkflowCompleted
    | WorkflowCancelled
    | ShutdownBegan
    | TimePassed
)
