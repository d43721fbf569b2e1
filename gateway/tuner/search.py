"""search: try a policy's settings on recent traffic, and say which is better, or "leave it" (pure).

Two rounds. The first tries every candidate on a few seeds and picks the best; that pick is biased
(of ten equal candidates one looks best). So the second plays only the pick and the present setting,
on fresh seeds, and the pick wins only if a paired bootstrap over those says that it is better.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from math import isinf
from random import Random
from statistics import fmean, pstdev

from gateway.core.policies import PolicySettings, policy_from_name
from gateway.core.policies.alpha_balanced import AlphaBalanced
from gateway.core.policies.completion import Completion
from gateway.core.policies.orders import VirtualDeadline
from gateway.core.types import Backend
from gateway.sim.experiment import Cell, Workload
from gateway.sim.scorecard import Scorecard, percentile
from gateway.sim.trace import SINGLE, TraceWorkflow

Measure = Callable[[Sequence[Cell]], list[Scorecard]]

HEXGEN_ALPHAS = tuple(number / 10 for number in range(10))
HEXSAGE_ALPHAS = (0.3, 0.5, 0.7)
HOLDS = (1.5, 2.5, 4.0)
KAPPA_FACTORS = (0.25, 4.0)
"""Of the present kappa."""
HOLD_IDLE_FACTOR = 2.0
"""hold_idle moves with hold."""

MIN_WORKFLOWS = 40
"""Fewer recorded workflows (or single calls) say too little about the traffic."""
MAX_CALLS = 5000
"""Calls a simulated run is made of, about: half a second of one core."""
MIN_COUNT, MAX_COUNT = 60, 600
"""Workflows in a simulated run, whatever their size."""
MIN_CV, MAX_CV = 0.3, 4.0


class Objective(StrEnum):
    """What "better" means."""

    P95 = "p95"
    """95th percentile of workflow latency (of single calls, where there are only those)."""
    ATTAINMENT = "attainment"
    """Share of workflows that meet their deadline."""
    MEAN_TTLT = "mean_ttlt"
    """Mean time from a call's arrival to its last token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """How much better than the present setting, with the 95 % interval of a paired bootstrap.

    A share of the present latency; for attainment, a difference of two shares.
    """

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One setting of the first round: a point of the curve."""

    label: str
    """What is different, such as `alpha=0.3`; `as it is` for the present setting."""
    settings: PolicySettings
    value: float
    """The objective, mean over seeds: seconds, or a share."""
    gain: Gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a search found."""

    policy: str
    objective: Objective
    present: PolicySettings
    curve: tuple[Point, ...]
    """The present setting first."""
    winner: PolicySettings | None
    """None: leave it."""
    label: str | None
    """The winner's, or that of the pick that did not win; None: nothing looked better at all."""
    gain: Gain | None
    """Of that, in the second round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What to search, and how thoroughly."""

    base: Cell
    """Traffic, backends, policy, and its present settings."""
    objective: Objective = Objective.P95
    explore_seeds: int = 3
    confirm_seeds: int = 8
    min_gain: float = 0.02
    """A smaller gain is not worth a change, however sure."""
    first_seed: int = 1


def search(plan: Search, measure: Measure) -> Finding:
    """Return what the plan finds; `measure` plays cells and returns their scorecards in order."""
    base, objective = plan.base, plan.objective
    options = [("as it is", base.settings), *candidates(base.policy, base.settings)]
    seeds = range(plan.first_seed, plan.first_seed + plan.explore_seeds)
    cells = [replace(base, settings=s, seed=seed) for _, s in options for seed in seeds]
    cards = measure(cells)
    size = len(seeds)
    rounds = [cards[i * size : (i + 1) * size] for i in range(len(options))]
    curve = tuple(
        Point(
            label=label,
            settings=settings,
            value=fmean(_value(card, objective) for card in own),
            gain=_gain(rounds[0], own, objective),
        )
        for (label, settings), own in zip(options, rounds, strict=True)
    )
    pick = max(curve, key=lambda point: point.gain.mean)
    gain = None
    if pick.gain.mean >= plan.min_gain:
        fresh = range(seeds.stop, seeds.stop + plan.confirm_seeds)
        pair = (base.settings, pick.settings)
        cards = measure([replace(base, settings=s, seed=seed) for s in pair for seed in fresh])
        gain = _gain(cards[: len(fresh)], cards[len(fresh) :], objective)
    won = gain is not None and gain.low > 0 and gain.mean >= plan.min_gain
    return Finding(
        policy=base.policy,
        objective=objective,
        present=base.settings,
        curve=curve,
        winner=pick.settings if won else None,
        label=pick.label if gain is not None else None,
        gain=gain,
    )


def candidates(policy: str, present: PolicySettings) -> list[tuple[str, PolicySettings]]:
    """Return settings worth trying instead of the present ones, each with what is different.

    One knob at a time: the knobs hardly interact, and the next search starts from what this one
    found. Empty for a policy that has no knobs.
    """
    active = policy_from_name(policy, present)
    found: list[tuple[str, PolicySettings]] = []
    if isinstance(active.dispatch, AlphaBalanced):
        found += [(f"alpha={a:g}", replace(present, alpha=a)) for a in HEXGEN_ALPHAS]
    elif isinstance(active.dispatch, Completion):
        found += [(f"alpha={a:g}", replace(present, alpha=a)) for a in HEXSAGE_ALPHAS]
        found += [
            (f"hold={hold:g}", replace(present, hold=hold, hold_idle=hold * HOLD_IDLE_FACTOR))
            for hold in HOLDS
        ]
    if isinstance(active.order, VirtualDeadline):
        kappas = [present.kappa * factor for factor in KAPPA_FACTORS]
        found += [(f"kappa={kappa:g}", replace(present, kappa=kappa)) for kappa in kappas]
    return [
        (label, settings)
        for label, settings in found
        if policy_from_name(policy, settings) != active
    ]


def cell_of(
    trace: Sequence[TraceWorkflow],
    backends: tuple[Backend, ...],
    policy: str,
    settings: PolicySettings,
    max_calls: int = MAX_CALLS,
) -> Cell:
    """Return the recorded traffic as something to simulate, at the rate at which it came.

    ValueError says why it cannot be: too little of it, or no arrival times.
    """
    workflows = [w for w in trace if w.name != SINGLE]
    singles = [w for w in trace if w.name == SINGLE]
    if len(workflows) < MIN_WORKFLOWS:
        workflows, singles = (singles, []) if len(singles) >= len(workflows) else (workflows, [])
    if len(workflows) < MIN_WORKFLOWS:
        raise ValueError(f"too little traffic: {len(workflows)} of {MIN_WORKFLOWS} workflows")
    rate_per_s, cv = _pace(workflows)
    calls_each = fmean(sum(1 for _ in workflow.calls) for workflow in workflows)
    singles_per_s = rate_per_s * len(singles) / len(workflows)
    calls_each += len(singles) / len(workflows)
    return Cell(
        workload=Workload.split("recent", workflows),
        backends=backends,
        policy=policy,
        settings=settings,
        rate_per_s=rate_per_s,
        cv=cv,
        seed=0,
        count=round(min(max(max_calls / calls_each, MIN_COUNT), MAX_COUNT)),
        singles=tuple(singles),
        singles_per_s=singles_per_s,
    )


def _pace(workflows: Sequence[TraceWorkflow]) -> tuple[float, float]:
    """Return arrivals a second, and the coefficient of variation of the gaps between them."""
    times = sorted(w.arrival_s for w in workflows if w.arrival_s is not None)
    if len(times) < len(workflows):
        raise ValueError("the trace has no arrival times")
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean_s = fmean(gaps)
    if mean_s <= 0:
        raise ValueError("everything in the trace arrived at one instant")
    return 1 / mean_s, min(max(pstdev(gaps) / mean_s, MIN_CV), MAX_CV)


def _value(card: Scorecard, objective: Objective) -> float:
    match objective:
        case Objective.P95:
            return card.percentile_s(0.95)
        case Objective.MEAN_TTLT:
            return card.mean_ttlt_s
        case Objective.ATTAINMENT:
            return card.on_time


def _gain(present: Sequence[Scorecard], other: Sequence[Scorecard], objective: Objective) -> Gain:
    gains = [
        _gain_of(_value(before, objective), _value(after, objective), objective)
        for before, after in zip(present, other, strict=True)
    ]
    rng = Random(0)
    means = sorted(fmean(rng.choices(gains, k=len(gains))) for _ in range(1000))
    return Gain(mean=fmean(gains), low=percentile(means, 0.025), high=percentile(means, 0.975))


def _gain_of(before: float, after: float, objective: Objective) -> float:
    if objective is Objective.ATTAINMENT:
        return after - before
    if isinf(before) or isinf(after):  # workflows that failed
        return 0.0 if before == after else (-1.0 if isinf(after) else 1.0)
    return 1 - after / before
