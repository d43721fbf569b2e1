"""Queue orders: what goes first among calls that wait."""

from dataclasses import dataclass

from gateway.core.call import Call
from gateway.core.gittins import Cost, attention_cost, gittins_index
from gateway.core.record import Record

ASSUMED_SLO_S = 60.0
"""The deadline that deadline orders assume for a call that has none, after its arrival."""


def _deadline_at(call: Call) -> float:
    return call.arrived_at + ASSUMED_SLO_S if call.deadline_at is None else call.deadline_at


@dataclass(frozen=True, slots=True)
class Fcfs(Record):
    """fcfs: as they came."""

    def key(self, call: Call) -> float:
        """Return the arrival."""
        return call.ready_at


@dataclass(frozen=True, slots=True)
class EarliestDeadline(Record):
    """edf: the earliest deadline first; a workflow's calls have the workflow's."""

    def key(self, call: Call) -> float:
        """Return the deadline."""
        return _deadline_at(call)


@dataclass(frozen=True, slots=True)
class LeastLaxity(Record):
    """llf: the least time to spare first, given all the work that is still to come."""

    def key(self, call: Call) -> float:
        """Return the instant by which it must start; laxity is that minus now."""
        return _deadline_at(call) - call.remaining_s


@dataclass(frozen=True, slots=True)
class ShortestFirst(Record):
    """srpt: the shortest predicted time first, by the point forecast."""

    def key(self, call: Call) -> float:
        """Return predicted seconds."""
        return call.reference_s


@dataclass(frozen=True, slots=True)
class GittinsFirst(Record):
    """gittins: the lowest Gittins index of the predicted cost first (SageSched)."""

    def key(self, call: Call) -> float:
        """Return the index in token^2, for what the call has attained so far."""
        cost = attention_cost(call.request.prompt_tokens)
        return gittins_index(call.request.output, cost, call.tokens_seen)


@dataclass(frozen=True, slots=True)
class Urgency(Record):
    """urgency: HexGen-Flow's local queue, U = t(q,m) - (t_SLO - waited), highest first.

    All U rise at the same rate, so ascending ready + t_SLO - t(q,m) is the same order.
    """

    def key(self, call: Call) -> float:
        """Return the instant by which the stage must start to keep its budget."""
        budget_s = ASSUMED_SLO_S if call.budget_s is None else call.budget_s
        return call.ready_at + budget_s - call.backlog_s


WORKFLOW_SCALE = 3.0
"""A workflow without a deadline is due this many times its predicted unloaded length."""


@dataclass(frozen=True, slots=True)
class VirtualDeadline(Record):
    """The default's order: deadlines where there are any, made-up ones where there are none.

    A workflow's calls go by its deadline. A call without one is due `kappa` times its Gittins
    index after its arrival: what looks cheap goes first, and none waits for ever, since the key
    of what comes later keeps growing. All keys are instants, so all traffic shares one scale.

    The index is over *engine seconds*, the time a call takes away from others: its prefill, which
    has the engine to itself, and its share of the KV cache times its decoding,
    (O^2 / 2 + I O) x step / capacity. On a full engine that cost, SageSched's, is what there is
    to save; plain seconds of service order worse (docs/policies.md has the figures).
    """

    kappa: float = 200.0

    def __post_init__(self) -> None:
        if self.kappa < 0:
            raise ValueError(f"kappa must be >= 0, not {self.kappa}")

    def key(self, call: Call) -> float:
        """Return the (virtual) deadline."""
        if call.deadline_at is not None:
            return call.deadline_at
        if call.run is not None:
            return call.run.opened_at + WORKFLOW_SCALE * call.total_s
        prompt_tokens = call.request.prompt_tokens
        share_s = call.reference_step_s / call.reference_kv_tokens
        engine_s = Cost(
            linear=share_s * prompt_tokens,
            square=share_s / 2,
            fixed=call.reference_prefill_s,
        )
        return call.arrived_at + self.kappa * gittins_index(call.request.output, engine_s)
