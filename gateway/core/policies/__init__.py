"""POLICIES: name -> policy. A new one is a file with its dispatch or order, and a line here.

`<dispatch>+<order>` combines any two parts, for example `weighted_jsq+edf`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from gateway.core.policies.alpha_balanced import AlphaBalanced, Score
from gateway.core.policies.base import Binding, Dispatch, Order, Policy
from gateway.core.policies.completion import Completion
from gateway.core.policies.least_backlog import LeastBacklog
from gateway.core.policies.orders import (
    EarliestDeadline,
    Fcfs,
    GittinsFirst,
    LeastLaxity,
    ShortestFirst,
    Urgency,
    VirtualDeadline,
)
from gateway.core.policies.power_of_two import PowerOfTwo
from gateway.core.policies.round_robin import RoundRobin
from gateway.core.policies.weighted_jsq import WeightedJsq

HEXGEN_ALPHA = 0.5
HEXSAGE_ALPHA = 0.7
"""0.5 weighs own and caused delay alike; for workflows the figures are flat from 0.4 to 0.8, and
among many short single calls 0.7 keeps workflows from being pushed to the slow backends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """The knobs. Each policy reads those that concern it; docs/policies.md says which."""

    alpha: float | None = None
    """Speed against queue. None: the policy's own, 0.5 for hexgen and 0.7 for hexsage."""
    score: Score = Score.BOUNDED
    beta: float = 10.0
    budget_share: float = 0.95
    hold: float = 2.5
    hold_idle: float = 5.0
    skip: int = 6
    kappa: float = 200.0

    def __post_init__(self) -> None:
        if self.hold < 1 or self.hold_idle < 1:
            raise ValueError("hold and hold_idle are ratios to the best score: at least 1")
        if self.budget_share <= 0:
            raise ValueError(f"budget_share must be > 0, not {self.budget_share}")
        if self.skip < 0:
            raise ValueError(f"skip must be >= 0, not {self.skip}")


DISPATCHES: Mapping[str, Callable[[PolicySettings], Dispatch]] = {
    "round_robin": lambda _: RoundRobin(),
    "least_backlog": lambda _: LeastBacklog(),
    "weighted_jsq": lambda _: WeightedJsq(),
    "p2c": lambda _: PowerOfTwo(),
    "alpha_balanced": lambda settings: AlphaBalanced(
        HEXGEN_ALPHA if settings.alpha is None else settings.alpha, settings.score, settings.beta
    ),
    "completion": lambda settings: Completion(
        HEXSAGE_ALPHA if settings.alpha is None else settings.alpha
    ),
}
ORDERS: Mapping[str, Callable[[PolicySettings], Order]] = {
    "fcfs": lambda _: Fcfs(),
    "edf": lambda _: EarliestDeadline(),
    "llf": lambda _: LeastLaxity(),
    "srpt": lambda _: ShortestFirst(),
    "gittins": lambda _: GittinsFirst(),
    "urgency": lambda _: Urgency(),
    "deadline": lambda settings: VirtualDeadline(settings.kappa),
}


def _at_arrival(dispatch: str, order: str, name: str, settings: PolicySettings) -> Policy:
    first_come = order == "fcfs"
    return Policy(
        name=name,
        dispatch=DISPATCHES[dispatch](settings),
        order=ORDERS[order](settings),
        binds=Binding.ARRIVAL,
        budget_share=None if first_come else settings.budget_share,
        ranks_in_engine=not first_come,
    )


def _late(dispatch: str, order: str, name: str, settings: PolicySettings) -> Policy:
    holds = dispatch == "completion"
    return Policy(
        name=name,
        dispatch=DISPATCHES[dispatch](settings),
        order=ORDERS[order](settings),
        binds=Binding.LATE,
        budget_share=settings.budget_share,
        ranks_in_engine=True,
        hold=settings.hold if holds else inf,
        hold_idle=settings.hold_idle if holds else inf,
        skip=settings.skip if holds else 0,
    )


POLICIES: Mapping[str, Callable[[PolicySettings], Policy]] = {
    "round_robin+fcfs": lambda s: _at_arrival("round_robin", "fcfs", "round_robin+fcfs", s),
    "least_backlog+fcfs": lambda s: _at_arrival("least_backlog", "fcfs", "least_backlog+fcfs", s),
    "weighted_jsq+fcfs": lambda s: _at_arrival("weighted_jsq", "fcfs", "weighted_jsq+fcfs", s),
    "p2c+fcfs": lambda s: _at_arrival("p2c", "fcfs", "p2c+fcfs", s),
    "hexgen": lambda s: _at_arrival("alpha_balanced", "urgency", "hexgen", s),
    "sagesched": lambda s: _late("weighted_jsq", "gittins", "sagesched", s),
    "edf": lambda s: _late("weighted_jsq", "edf", "edf", s),
    "llf": lambda s: _late("weighted_jsq", "llf", "llf", s),
    "srpt": lambda s: _late("weighted_jsq", "srpt", "srpt", s),
    "hexsage": lambda s: _late("completion", "deadline", "hexsage", s),
}
DEFAULT_POLICY = "hexsage"


def policy_from_name(name: str, settings: PolicySettings | None = None) -> Policy:
    """Return a policy by its name or as `<dispatch>+<order>`; ValueError lists what there is."""
    settings = settings or PolicySettings()
    if name in POLICIES:
        return POLICIES[name](settings)
    dispatch, plus, order = name.partition("+")
    if plus and dispatch in DISPATCHES and order in ORDERS:
        build = _late if dispatch == "completion" else _at_arrival
        return build(dispatch, order, name, settings)
    raise ValueError(
        f"no policy '{name}'; there are {', '.join(POLICIES)}, and <dispatch>+<order> of "
        f"{', '.join(DISPATCHES)} with {', '.join(ORDERS)}"
    )
