"""Scorecard: what a run was worth, in the figures that people compare (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from random import Random

from gateway.sim.simulator import Run, WorkflowResult
from gateway.sim.trace import SINGLE

WARM_SHARE = 0.15
"""Left out at either end: latency is taken on the middle 70 %, while load lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorecard:
    """Latencies in seconds, from a client's first call to its last answer."""

    latencies_s: tuple[float, ...]
    """Of the measured workflows, ascending; one that failed counts as infinite."""
    completed_per_s: float
    """Workflows completed while new ones still arrived, over that time."""
    mean_ttlt_s: float
    """Mean over single calls, from arrival to last token."""
    ttlt_s_p95: float
    mean_queue_s: float
    preemptions_per_call: float
    on_time: float
    """Share of the measured workflows that met their own deadline; one without always does."""
    failed_workflows: int
    calls: int

    @property
    def mean_s(self) -> float:
        """Mean workflow latency."""
        return sum(self.latencies_s) / len(self.latencies_s) if self.latencies_s else inf

    def percentile_s(self, share: float) -> float:
        """Return the latency that `share` (0..1) of the measured workflows do not exceed."""
        return percentile(self.latencies_s, share)

    def attainment(self, deadline_s: float) -> float:
        """Return the share of measured workflows that took at most `deadline_s`."""
        if not self.latencies_s:
            return 0.0
        return sum(1 for s in self.latencies_s if s <= deadline_s) / len(self.latencies_s)


def percentile(ascending: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed."""
    if not ascending:
        return inf
    return ascending[max(ceil(share * len(ascending)) - 1, 0)]


def score(run: Run, warm_share: float = WARM_SHARE, *, singles: bool | None = None) -> Scorecard:
    """Return the scorecard of a run; the first and last `warm_share` of workflows only load it.

    Of mixed traffic, `singles` chooses the independent calls (True) or the workflows (False).
    """
    results = [
        result
        for result in run.workflows
        if singles is None or (result.arrival.workflow.name == SINGLE) is singles
    ]
    first = int(len(results) * warm_share)
    measured = results[first : len(results) - first] or results
    last_arrival_at = max((result.arrival.at for result in results), default=0.0)
    completed = sum(1 for r in results if r.ended_at is not None and r.ended_at <= last_arrival_at)
    ids = {result.arrival.id for result in measured}
    calls = [s for s in run.settled if s.request_id.partition("/")[0] in ids]
    ttlt = sorted(s.ended_at - s.arrived_at for s in calls)
    waits = [s.started_at - s.arrived_at for s in calls if s.started_at is not None]
    return Scorecard(
        latencies_s=tuple(sorted(_latency_s(result) for result in measured)),
        completed_per_s=completed / last_arrival_at if last_arrival_at > 0 else 0.0,
        mean_ttlt_s=sum(ttlt) / len(ttlt) if ttlt else inf,
        ttlt_s_p95=percentile(ttlt, 0.95),
        mean_queue_s=sum(waits) / len(waits) if waits else 0.0,
        preemptions_per_call=run.preemptions / max(len(run.settled), 1),
        on_time=sum(1 for result in measured if _is_on_time(result)) / max(len(measured), 1),
        failed_workflows=sum(1 for result in results if result.ended_at is None),
        calls=len(run.settled),
    )


def bootstrap_ratio(
    over: Sequence[float], under: Sequence[float], seed: int = 0, draws: int = 2000
) -> tuple[float, float, float]:
    """Return the mean of the paired ratios over/under with its 95 % interval.

    Pairs are the clusters (one trace and seed each); they are drawn with replacement.
    """
    ratios = [a / b for a, b in zip(over, under, strict=True)]
    rng = Random(seed)
    means = sorted(sum(rng.choice(ratios) for _ in ratios) / len(ratios) for _ in range(draws))
    mean = sum(ratios) / len(ratios)
    return mean, percentile(means, 0.025), percentile(means, 0.975)


def _is_on_time(result: WorkflowResult) -> bool:
    deadline_s = result.arrival.deadline_s
    return result.latency_s is not None and (deadline_s is None or result.latency_s <= deadline_s)


def _latency_s(result: WorkflowResult) -> float:
    latency_s = result.latency_s
    return inf if latency_s is None else latency_s
