"""Comparison: two policies on the same workflows (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.report import Cell
from loadgen.statistics import Ratio, quantile_ratio

BOOTSTRAP_SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How much lower a policy's latency is than the baseline's, on the same workflows."""

    policy: str
    baseline: str
    qps: float | None
    p50: Ratio | None
    """baseline / policy: above 1 the policy is faster. None: too few workflows."""
    p95: Ratio | None


def with_first(cells: Sequence[Cell]) -> list[Comparison]:
    """Compare every policy with the first one, rate by rate."""
    baselines: dict[float | None, Cell] = {}
    comparisons = []
    for cell in cells:
        baseline = baselines.setdefault(cell.qps, cell)
        if baseline is not cell:
            comparisons.append(compared(baseline, cell))
    return comparisons


def compared(baseline: Cell, cell: Cell) -> Comparison:
    """Compare two cells over the workflows that both measured and completed.

    The caller sees to it that both ran the same plans.
    """
    theirs = {(one.seed, one.index): one.latency_s for one in baseline.measured}
    pairs = [
        (other_s, one.latency_s)
        for one in cell.measured
        if (other_s := theirs.get((one.seed, one.index))) is not None
        if one.latency_s is not None
    ]
    return Comparison(
        policy=cell.policy,
        baseline=baseline.policy,
        qps=cell.qps,
        p50=quantile_ratio(pairs, BOOTSTRAP_SEED, share=0.5),
        p95=quantile_ratio(pairs, BOOTSTRAP_SEED),
    )
