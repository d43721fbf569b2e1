"""Call: the scheduler's own record of one request, from arrival to settlement."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from gateway.core.cost import prefill_s, step_s
from gateway.core.profiles import GpuProfile
from gateway.core.types import BackendId, Decision, InferenceRequest

if TYPE_CHECKING:
    from gateway.core.load import BackendLoad
    from gateway.core.workflow import StageVisit, WorkflowRun


class CallState(StrEnum):
    """Where a call stands."""

    __hash__ = str.__hash__  # an enum's own is slow Python, and these are keys

    HELD = "held"
    """Waits for an earlier stage of its workflow."""
    QUEUED = "queued"
    PAUSED = "paused"
    """Waits a little before it is tried again on a backend that has failed it."""
    RUNNING = "running"
    ENDED = "ended"
    """Settled; the scheduler has forgotten it."""


@dataclass(slots=True, eq=False, kw_only=True)
class Call:
    """Mutable, owned by the scheduler alone; others may read it between events."""

    request: InferenceRequest
    sequence: int
    """Arrival number: the last word on ties."""
    arrived_at: float
    """Its place in line: when the request, or the try it repeats, was first seen."""
    came_at: float
    """When this request reached the scheduler."""
    prefix_tokens: int = 0
    """Tokens of the prompt that other prompts may share."""
    output_tokens: int
    """Predicted answer length, mean, whole tokens (sums of integers do not drift)."""
    further_tokens: int = 0
    """KV tokens of further choices, as many as an engine will take in at a time."""
    reference_s: float = 0.0
    """Predicted unloaded execution time on the average backend of its model."""
    reference_prefill_s: float = 0.0
    reference_step_s: float = 0.0
    """The two parts of it: reading the prompt, and each output token."""
    reference_kv_tokens: int = 1
    """KV capacity of that average backend."""
    remaining_s: float = 0.0
    """Predicted seconds to the end of its workflow, itself included; a lone call's own time."""
    total_s: float = 0.0
    """Predicted seconds of its whole workflow; a lone call's own time."""
    state: CallState = CallState.QUEUED
    deadline_at: float | None = None
    """The workflow's deadline, or the request's own."""
    budget_s: float | None = None
    """What of the deadline its stage may use, from the instant it became ready."""
    ready_at: float = 0.0
    """When it could first have run: its arrival, or the end of the stage it waited for."""
    order_key: float = 0.0
    is_hopeless: bool = False
    """Its deadline is out of reach and the rule is to let it run last."""
    run: "WorkflowRun | None" = None
    visit: "StageVisit | None" = None

    load: "BackendLoad | None" = None
    """Where it is bound or runs; a removed backend's load outlives its place in the fleet."""
    waits_since: float = 0.0
    passed: int = 0
    """How many calls behind it have started while it could not."""
    attempts: int = 0
    tried: set[BackendId] = field(default_factory=set)
    """Backends that have failed it."""
    is_recalled: bool = False
    """Its backend is thought to hang; another attempt is paid for."""
    decision: Decision | None = None
    started_at: float | None = None
    first_token_at: float | None = None
    prefill_ends_at: float = 0.0
    """When its prefill should be over, for calls that do not report it."""
    tokens_seen: int = 0
    """Output tokens reported so far."""
    prompt_tokens_told: int | None = None
    """The engine's own count of the prompt, once it has told."""

    # What it adds to its backend's sums while it is there; subtracted as added.
    fresh_tokens: int = 0
    own_tokens: int = 0
    context_tokens: int = 0
    backlog_s: float = 0.0
    charged_s: float = 0.0
    """Service charged to its flow by fair queueing."""

    @property
    def least_tokens(self) -> int:
        """KV tokens it needs at least, with all that it may share there already."""
        tokens = self.request.prompt_tokens + self.output_tokens + self.further_tokens
        return tokens - self.prefix_tokens

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    def own_s(self, output_tokens: int) -> float:
        """Return its time for that many tokens on the average backend, unloaded."""
        return self.reference_prefill_s + max(output_tokens - 1, 0) * self.reference_step_s


def call_for(
    request: InferenceRequest, sequence: int, reference: GpuProfile | None, now: float
) -> Call:
    """Return the record of a request that has just come; `reference` is the average backend."""
    call = Call(
        request=request,
        sequence=sequence,
        arrived_at=now if request.first_seen_at is None else request.first_seen_at,
        came_at=now,
        prefix_tokens=sum(tokens for _, tokens in request.prefix) if request.prefix else 0,
        output_tokens=max(round(request.output.mean_tokens), 1),
        deadline_at=request.deadline_at,
    )
    if reference is not None:
        fresh_tokens = max(request.prompt_tokens - call.prefix_tokens, 1)
        context_tokens = request.prompt_tokens + call.output_tokens / 2
        call.reference_prefill_s = prefill_s(reference, fresh_tokens)
        call.reference_step_s = step_s(reference, 1, context_tokens)
        call.reference_kv_tokens = reference.kv_tokens
        # Engines take in choices as there is room: thousands need not wait for an idle one.
        call.further_tokens = min(request.further_tokens, reference.kv_tokens // 2)
    call.reference_s = call.own_s(call.output_tokens)
    call.remaining_s = call.total_s = call.reference_s
    return call
