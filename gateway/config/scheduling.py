"""What decides: the policy, its tuner, deadlines, workflows, queues, health and retries."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from gateway.config.entry import Count, Entry, Name, NotNegative, Positive, Share
from gateway.core.admission import QueueLimits, Unreachable
from gateway.core.breaker import HealthRules
from gateway.core.policies import DEFAULT_POLICY, PolicySettings, policy_from_name
from gateway.core.policies.alpha_balanced import Score
from gateway.core.policies.base import Policy
from gateway.core.retries import RetryRules
from gateway.core.specs import StageSpec, WorkflowSpec

_KNOBS = PolicySettings()


class PolicyEntry(Entry):
    """Which policy decides, and its knobs."""

    name: str = DEFAULT_POLICY
    """One of docs/policies.md, or `<dispatch>+<order>`."""
    alpha: Annotated[float, Field(ge=0, le=1)] | None = _KNOBS.alpha
    """Speed against queue: 1 is speed alone. None: the policy's own, 0.7 for hexsage."""
    score: Score = _KNOBS.score
    """Which form of HexGen-Flow's score `hexgen` uses."""
    beta: Positive = _KNOBS.beta
    """The scale of `score: paper`."""
    budget_share: Positive = _KNOBS.budget_share
    """Share of an engine's KV cache that may be promised at once."""
    hold: Annotated[float, Field(ge=1)] = _KNOBS.hold
    """A call waits if the best backend with room scores so many times worse than the best of
    all."""
    hold_idle: Annotated[float, Field(ge=1)] = _KNOBS.hold_idle
    """The same for a backend that is idle."""
    skip: Annotated[int, Field(ge=0)] = _KNOBS.skip
    """Calls behind one that waits that may pass it, at a time."""
    kappa: NotNegative = _KNOBS.kappa
    """How long a lone call's made-up deadline is, for each second that it takes from others."""

    @field_validator("name")
    @classmethod
    def _exists(cls, name: str) -> str:
        policy_from_name(name)
        return name

    @property
    def settings(self) -> PolicySettings:
        """The knobs as policies read them."""
        return PolicySettings(**self.model_dump(exclude={"name"}))

    def to_core(self) -> Policy:
        """Return the policy."""
        return policy_from_name(self.name, self.settings)


class TunerEntry(Entry):
    """Whether, and how, the policy's settings are tried anew on recent traffic."""

    enabled: bool = True
    """Whether settings are tried at all."""
    interval_s: Positive = 600.0
    """How often."""
    window_s: Positive = 3600.0
    """How far back the traffic it looks at may reach."""
    objective: Literal["p95", "attainment", "mean_ttlt"] = "p95"
    """What counts: the 95th percentile, the share in time, or the mean time to the last token."""


class SloEntry(Entry):
    """What is promised where a client asks for nothing."""

    default_deadline_ms: Positive | None = 60_000
    """Of workflows without a deadline of their own, counted from their first call."""


class StageEntry(Entry):
    """One stage of a declared workflow."""

    name: Name
    """As calls say it in `x-workflow-stage`."""
    depends_on: tuple[Name, ...] = ()
    """Stages that must be done before this one may run."""
    fan_out: Annotated[int, Field(ge=1)] = 1
    """Answers it takes before the stages that depend on it may run."""
    max_repeats: Annotated[int, Field(ge=1)] | None = None
    """How often it may come; None: that is not known."""

    def to_core(self) -> StageSpec:
        """Return the stage as the scheduler knows it."""
        return StageSpec(**self.model_dump())


class WorkflowEntry(Entry):
    """One declared workflow."""

    deadline_ms: Positive | None = None
    """From its first call; None: `slo.default_deadline_ms`."""
    stages: tuple[StageEntry, ...] = ()
    """What it is made of, as far as that is known."""

    def to_core(self, name: str) -> WorkflowSpec:
        """Return the workflow as the scheduler knows it; ValueError if its stages make no sense."""
        deadline_s = None if self.deadline_ms is None else self.deadline_ms / 1000
        stages = tuple(stage.to_core() for stage in self.stages)
        return WorkflowSpec(name=name, stages=stages, deadline_s=deadline_s)


class QueueEntry(Entry):
    """How much may wait, and how long."""

    max_requests: Annotated[int, Field(ge=0)] = 1000
    """Calls that may wait; with 0, what cannot start is refused."""
    max_bytes: Annotated[int, Field(ge=0)] = 256 * 1024 * 1024
    """Bodies of calls that may wait, in memory."""
    max_predicted_s: Positive | None = None
    """Predicted work that may wait, in an average backend's seconds; None: any."""
    timeout_s: Positive = 120.0
    """How long a call may wait."""
    max_model_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of each of these that one model's calls may fill."""
    max_backend_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of `max_requests` that may wait for one backend, where a policy binds at arrival."""
    max_tenant_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of each of these that one tenant may fill."""
    on_unreachable_deadline: Unreachable = Unreachable.QUEUE
    """What becomes of a call that will hardly be in time: as any other, refused, or last."""

    def to_core(self) -> QueueLimits:
        """Return the limits as the scheduler knows them."""
        return QueueLimits(**self.model_dump(exclude_none=True))


class HealthEntry(Entry):
    """How often backends are looked at, and when one that fails its calls gets no more."""

    interval_s: Positive = 5.0
    """Between two looks."""
    timeout_s: Positive = 2.0
    """How long a look may take."""
    failures: Count = 5
    """So many failed calls in a row open the breaker."""
    error_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """So does this share of the last calls that ended, once there are half of `window`."""
    window: Annotated[int, Field(ge=2)] = 20
    """How many of the last calls count."""
    cooldown_s: Positive = 5.0
    """From the opening to the first trial; doubled each time."""
    max_cooldown_s: Positive = 120.0
    """No longer than this."""
    ramp_s: NotNegative = 8.0
    """How long it takes until a backend that is back has all of its budget."""
    max_ejected_share: Share = 0.5
    """No more of a model's backends that are up are kept out."""
    silence_s: Positive = 60.0
    """Where no call streams: silence of this length, and of `silence_factor` times what the oldest
    call should take, is suspect."""
    silence_factor: Positive = 4.0
    """So many times longer than it should take."""
    stall_s: Annotated[float, Field(ge=2)] = 5.0
    """Where calls stream: so long without a token, and `silence_factor` times what the next one
    should take, is suspect. Not less than 2: it is once a second that the scheduler hears how
    streams go on."""

    def to_core(self) -> HealthRules:
        """Return the rules as the scheduler knows them."""
        return HealthRules(**self.model_dump(exclude={"interval_s", "timeout_s"}))


class RetriesEntry(Entry):
    """How often a call, and all calls together, may be tried again."""

    max_attempts: Count = 3
    """Attempts at one call, the first one included."""
    share: NotNegative = 0.2
    """Retries for each first attempt, in the long run."""
    burst: Annotated[int, Field(ge=0)] = 256
    """So many more at once: what a backend held when it died must find another place."""
    backoff_s: NotNegative = 0.05
    """Before a backend that failed the call is tried again; doubled each time."""
    max_backoff_s: NotNegative = 2.0
    """No longer than this."""

    def to_core(self) -> RetryRules:
        """Return the rules as the scheduler knows them."""
        return RetryRules(**self.model_dump())
