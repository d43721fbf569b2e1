"""Spans, as the gateway means them: names and attributes by OpenTelemetry's conventions (pure).

The `gen_ai.*` names are those of the GenAI conventions of November 2026, which are not stable yet;
what they have no word for is `hexsage.*`. No span holds anything of a prompt or an answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.core.commands import Settle, Start, WorkflowEnded
from gateway.core.outcomes import Outcome
from gateway.core.types import InferenceRequest
from gateway.telemetry.traceparent import TraceContext

Value = str | bool | int | float
Attributes = dict[str, Value]


class Kind(StrEnum):
    """Whose side of a call it is."""

    SERVER = "server"
    """The gateway answers a client."""
    CLIENT = "client"
    """The gateway asks an engine."""
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that is over. Instants are nanoseconds since 1970."""

    name: str
    kind: Kind
    context: TraceContext
    parent: TraceContext | None
    began_at_ns: int
    ended_at_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str | None = None
    """What went wrong, as a word of a closed set; None: nothing."""
    links: tuple[TraceContext, ...] = ()
    """Spans that it belongs with, besides its parent."""


OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/generate": "text_completion",
    "/generate_stream": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v2/embed": "embeddings",
}
"""Names of operations by path, where the conventions have one."""

GOOD = frozenset({Outcome.COMPLETED, Outcome.ABANDONED})
"""Ends that are nobody's error: a client may leave."""


def operation_of(path: str) -> str:
    """Return the name of what a path does; the last word of it, where there is no better one."""
    return OPERATIONS.get(path) or path.rstrip("/").rpartition("/")[2] or "unknown"


def error_of(settle: Settle) -> str | None:
    """Return what a call's span says went wrong."""
    if settle.outcome in GOOD:
        return None
    return (settle.reason or settle.outcome).value


def call_attributes(
    request: InferenceRequest, operation: str, settle: Settle, provider: str
) -> Attributes:
    """Return what is told of a call. `provider` is the kind of its engine."""
    told: Attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": request.model,
        "gen_ai.request.stream": request.reports_first_token,
        "hexsage.request.id": request.id,
        "hexsage.tenant": request.tenant,
        "hexsage.outcome": settle.outcome.value,
        "hexsage.attempts": settle.attempts,
        "hexsage.output_tokens.predicted": settle.predicted_output_tokens,
    }
    if settle.started_at is not None:
        told["gen_ai.usage.input_tokens"] = settle.prompt_tokens
        told["gen_ai.usage.output_tokens"] = settle.output_tokens
        told["gen_ai.response.model"] = request.model
    if settle.first_token_at is not None:
        first_s = settle.first_token_at - settle.arrived_at
        told["gen_ai.response.time_to_first_chunk"] = first_s
    if settle.backend_id is not None:
        told["hexsage.backend"] = settle.backend_id
    if settle.deadline_at is not None:
        told["hexsage.late"] = settle.ended_at > settle.deadline_at
    ref = request.workflow
    if ref is not None:
        told["hexsage.workflow.id"] = ref.key.id
        if ref.name is not None:
            told["gen_ai.workflow.name"] = ref.name
        if ref.stage is not None:
            told["hexsage.workflow.stage"] = ref.stage
    return told


def attempt_attributes(start: Start) -> Attributes:
    """Return what is told of one attempt at an engine, and why it went there."""
    decision = start.decision
    told: Attributes = {
        "hexsage.backend": start.backend_id,
        "hexsage.attempt": start.attempt,
        "hexsage.policy": decision.policy,
        "hexsage.predicted_s": decision.predicted_s,
    }
    if decision.budget_s is not None:
        told["hexsage.budget_s"] = decision.budget_s
    if decision.laxity_s is not None:
        told["hexsage.laxity_s"] = decision.laxity_s
    return told


def workflow_attributes(name: str | None, identity: str, ended: WorkflowEnded | None) -> Attributes:
    """Return what is told of a workflow; `ended` is None if the gateway stops before it does."""
    told: Attributes = {
        "gen_ai.operation.name": "invoke_workflow",
        "hexsage.workflow.id": identity,
        "hexsage.workflow.state": "open" if ended is None else ended.state,
    }
    if name is not None:
        told["gen_ai.workflow.name"] = name
    if ended is not None:
        told["hexsage.workflow.calls"] = ended.calls
        if ended.deadline_at is not None:
            told["hexsage.late"] = ended.is_late
    return told
