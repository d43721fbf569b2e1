"""Percentiles and bootstrap intervals (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BLOCK_ARRIVALS = 10
"""Workflows that arrive close together wait for each other: they are resampled together."""
RESAMPLES = 2000
MAX_DRAWN = 2_000_000
"""Pairs held in memory at once."""


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
    pairs: Sequence[tuple[float, float]], seed: int, share: float = 0.95
) -> Ratio | None:
    """Return quantile(first) / quantile(second) of latencies paired by workflow.

    `pairs` are in order of arrival; blocks of neighbours are drawn with replacement (circular
    block bootstrap). None with fewer than two blocks.
    """
    count = len(pairs)
    if count < 2 * BLOCK_ARRIVALS:
        return None
    values = np.array(pairs)
    rng = np.random.default_rng(seed)
    blocks = -(-count // BLOCK_ARRIVALS)
    at_once = max(MAX_DRAWN // count, 1)
    ratios: list[float] = []
    while len(ratios) < RESAMPLES:
        starts = rng.integers(0, count, size=(min(at_once, RESAMPLES - len(ratios)), blocks, 1))
        neighbours = (starts + np.arange(BLOCK_ARRIVALS)) % count
        ratios.extend(_ratios(values[neighbours.reshape(len(starts), -1)[:, :count]], share))
    low, high = np.percentile(ratios, [2.5, 97.5])
    (value,) = _ratios(values[np.newaxis], share)
    return Ratio(value=value, low=float(low), high=float(high))


def _ratios(samples: npt.NDArray[np.float64], share: float) -> list[float]:
    """Return the ratio of each sample: samples x workflows x 2."""
    first, second = np.percentile(samples, 100 * share, axis=1).T
    return [float(ratio) for ratio in first / second]
