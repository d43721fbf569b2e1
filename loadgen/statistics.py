"""Percentiles and bootstrap intervals (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BLOCK_ARRIVALS = 10
"""Workflows that arrive close together wait for each other: they are resampled together."""
RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Summary of latencies, in seconds."""

    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float


def summary(latencies_s: Sequence[float]) -> Latency | None:
    """Summarise; None when there are none."""
    if not latencies_s:
        return None
    p50, p95, p99 = np.percentile(latencies_s, [50, 95, 99])
    return Latency(
        mean_s=float(np.mean(latencies_s)), p50_s=float(p50), p95_s=float(p95), p99_s=float(p99)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio of two policies' figures with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes 1."""
        return self.low > 1 or self.high < 1


def quantile_ratio(
    pairs: Sequence[Sequence[tuple[float, float]]], seed: int, share: float = 0.95
) -> Ratio | None:
    """Return quantile(first) / quantile(second) of latencies paired by workflow.

    `pairs` holds a sequence a run, in order of arrival. Blocks of consecutive arrivals are drawn
    with replacement from all runs. None with fewer than two blocks.
    """
    blocks = [
        np.array(run[start : start + BLOCK_ARRIVALS])
        for run in pairs
        for start in range(0, len(run), BLOCK_ARRIVALS)
    ]
    if len(blocks) < 2:
        return None
    rng = np.random.default_rng(seed)
    ratios = [
        _ratio(np.concatenate([blocks[number] for number in chosen]), share)
        for chosen in rng.integers(0, len(blocks), size=(RESAMPLES, len(blocks)))
    ]
    low, high = np.percentile(ratios, [2.5, 97.5])
    value = _ratio(np.concatenate(blocks), share)
    return Ratio(value=value, low=float(low), high=float(high))


def _ratio(pairs: npt.NDArray[np.float64], share: float) -> float:
    first, second = np.percentile(pairs, 100 * share, axis=0)
    return float(first / second)
