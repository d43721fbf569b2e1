"""The nouns that flow through the scheduler: requests, backends, workflow references."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, NewType

from gateway.core.lengths import PRIOR, LengthDistribution
from gateway.core.profiles import GpuProfile
from gateway.core.record import Record

RequestId = NewType("RequestId", str)
BackendId = NewType("BackendId", str)
TenantId = NewType("TenantId", str)

ANONYMOUS = TenantId("anonymous")


class WorkflowKey(NamedTuple):
    """A workflow's identity: ids are scoped to the tenant that sent them."""

    tenant: TenantId
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRef(Record):
    """What one call says of the workflow it belongs to."""

    key: WorkflowKey
    name: str | None = None
    """The template, declared or learned; None groups by id alone."""
    stage: str | None = None
    deadline_s: float | None = None
    """End-to-end SLO of the workflow, counted from its first call."""
    final: bool = False
    """The workflow is complete when this call ends."""
    is_session: bool = False
    """A client's session stands in for a workflow: it may last for hours, so it has no deadline
    but one that the client sets."""


class PromptSegment(NamedTuple):
    """A leading piece of a prompt that other prompts may share, such as a system message.

    `key` hashes everything from the prompt's start to this segment's end, so equal keys mean
    equal prefixes. `tokens` is the length of this segment alone.
    """

    key: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRequest(Record):
    """One model call, ready to be scheduled."""

    id: RequestId
    model: str
    """The model as backends serve it: aliases are resolved."""
    prompt_tokens: int
    output: LengthDistribution
    """How long the answer may be, predicted before it starts."""
    tenant: TenantId = ANONYMOUS
    flow: str = ""
    """A share within the tenant, for fair queueing; empty: the tenant is one flow."""
    prefix: tuple[PromptSegment, ...] = ()
    """Leading segments in order; their tokens sum to at most `prompt_tokens`."""
    workflow: WorkflowRef | None = None
    deadline_at: float | None = None
    """SLO of a call without a workflow, as an instant."""
    priority: int = 0
    """The client's own class: lower is sooner. It only orders calls of the same tenant."""
    eligible: frozenset[BackendId] | None = None
    """Backends able to serve this call's API; None: every backend that has the model."""
    first_seen_at: float | None = None
    """A client's retry keeps the place of its first try: when that arrived."""
    body_bytes: int = 0
    queue_timeout_s: float | None = None
    """How long it may wait; None: as long as the queue allows."""
    further_tokens: int = 0
    """Output tokens of its other choices (n > 1): they take KV beside the longest, not time."""
    reports_first_token: bool = False
    """The driver will feed `FirstToken`: the answer streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend(Record):
    """One serving engine, as configured or discovered. What it is doing is its `BackendLoad`."""

    id: BackendId
    models: frozenset[str]
    profile: GpuProfile
    max_in_flight: int | None = None
    """A hard cap on calls in the engine, besides the KV budget."""
    priority_scheduling: bool = False
    """The engine orders its own queue by the `priority` it is given."""
    weight: float = 1.0
    """Share of traffic under `round_robin`; other policies know better."""


class BackendState(StrEnum):
    """Whether a backend may be given new calls."""

    UP = "up"
    DRAINING = "draining"
    """Finishes what it has; gets nothing new."""
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Where a call goes, with every score, so that people can be told why."""

    request_id: RequestId
    backend_id: BackendId
    decided_at: float
    policy: str
    scores: dict[BackendId, float] = field(default_factory=dict)
    """By backend; lower is better. Backends that were full are scored too."""
    full: frozenset[BackendId] = frozenset()
    order_key: float = 0.0
    queue_s: float = 0.0
    """How long the call waited in the gateway."""
    predicted_s: float = 0.0
    """Predicted execution time on the chosen backend, at its load then."""
    budget_s: float | None = None
    """What of the deadline this stage may use; None without one."""
    laxity_s: float | None = None
    """Budget left minus predicted execution time."""
    output: LengthDistribution = PRIOR
    """What was predicted of the answer's length."""

    @property
    def output_tokens_p50(self) -> float:
        """The length that half of such answers do not exceed."""
        return self.output.quantile(0.5)

    @property
    def output_tokens_p90(self) -> float:
        """The length that nine of ten such answers do not exceed."""
        return self.output.quantile(0.9)
