"""LengthDistribution: how many tokens an answer may have, as mass on geometric buckets."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import erf, log, sqrt

from gateway.core.record import Record


def geometric_edges(first: int, last: int, count: int) -> tuple[float, ...]:
    """Return 0 followed by `count` whole-number edges from `first` to `last`, strictly rising."""
    ratio = (last / first) ** (1 / (count - 1))
    edges = [0.0]
    for step in range(count):
        edges.append(max(float(round(first * ratio**step)), edges[-1] + 1))
    return tuple(edges)


EDGES = geometric_edges(8, 16384, 48)
"""The shared bucket edges: bucket b holds lengths in (EDGES[b], EDGES[b + 1]].

48 buckets lose 0.5 % of CRPS against exact lengths and nothing of the Gittins gain.
"""


@dataclass(frozen=True, slots=True)
class LengthDistribution(Record):
    """Mass by bucket of `edges`; within a bucket lengths are spread evenly.

    `edges` has one more entry than `mass`, starts at 0 and rises; `mass` sums to 1.
    """

    mass: tuple[float, ...]
    edges: tuple[float, ...] = EDGES
    mean_tokens: float = field(init=False)
    _cumulative: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.edges) != len(self.mass) + 1:
            raise ValueError(f"{len(self.mass)} masses need {len(self.mass) + 1} edges")
        cumulative = tuple(accumulate(self.mass))
        if not cumulative or abs(cumulative[-1] - 1) > 1e-6 or min(self.mass) < 0:
            raise ValueError("the masses must be >= 0 and sum to 1")
        mean = sum(
            mass * (low + high) / 2
            for mass, low, high in zip(self.mass, self.edges, self.edges[1:], strict=False)
        )
        object.__setattr__(self, "mean_tokens", mean)
        object.__setattr__(self, "_cumulative", cumulative)

    @classmethod
    def point(cls, tokens: float) -> "LengthDistribution":
        """Return a distribution that is sure of `tokens` (>= 1)."""
        sure = max(float(tokens), 1.0)
        return cls(mass=(0.0, 1.0), edges=(0.0, sure - 0.5, sure + 0.5))

    @classmethod
    def from_samples(cls, lengths: Sequence[float]) -> "LengthDistribution":
        """Return the bucketed empirical distribution of at least one length in tokens."""
        counts = [0] * (len(EDGES) - 1)
        for length in lengths:
            counts[bucket_of(length)] += 1
        return cls(mass=tuple(count / len(lengths) for count in counts))

    def quantile(self, share: float) -> float:
        """Return the length in tokens that `share` (0..1) of answers do not exceed."""
        bucket = min(bisect_left(self._cumulative, share), len(self.mass) - 1)
        below = self._cumulative[bucket - 1] if bucket else 0.0
        inside = self.mass[bucket]
        part = (share - below) / inside if inside > 0 else 1.0
        low, high = self.edges[bucket], self.edges[bucket + 1]
        return low + (high - low) * min(max(part, 0.0), 1.0)

    def exceeds(self, tokens: float) -> float:
        """Return the probability that the answer is longer than `tokens`."""
        if tokens >= self.edges[-1]:
            return 0.0
        if tokens <= 0:
            return 1.0
        bucket = bisect_left(self.edges, tokens) - 1
        low, high = self.edges[bucket], self.edges[bucket + 1]
        below = self._cumulative[bucket - 1] if bucket else 0.0
        part = (tokens - low) / (high - low)
        return max(0.0, 1.0 - below - self.mass[bucket] * part)

    def remaining_mean(self, age_tokens: float) -> float:
        """Return the mean of what is left of an answer that has reached `age_tokens`."""
        alive = self.exceeds(age_tokens)
        if alive <= 1e-9:
            # It outlived the forecast: expect about as much again as a bucket is wide.
            return max(age_tokens * 0.18, 1.0)
        total = 0.0
        for mass, low, high in zip(self.mass, self.edges, self.edges[1:], strict=False):
            if high <= age_tokens or mass == 0:
                continue
            start = max(low, age_tokens)
            total += mass * (high - start) / (high - low) * ((start + high) / 2 - age_tokens)
        return total / alive

    def capped(self, max_tokens: int) -> "LengthDistribution":
        """Return the same forecast with all mass above `max_tokens` (>= 1) moved to it."""
        if max_tokens >= self.edges[-1]:
            return self
        over = self.exceeds(max_tokens)
        if over <= 0:
            return self
        cap = float(max(max_tokens, 1))
        bucket = bisect_left(self.edges, cap) - 1
        below = self._cumulative[bucket - 1] if bucket else 0.0
        inside = max(1.0 - over - below, 0.0)
        spike = min(0.5, (cap - self.edges[bucket]) / 2)
        edges = (*self.edges[: bucket + 1], cap - spike, cap)
        mass = (*self.mass[:bucket], inside, 1.0 - below - inside)
        return LengthDistribution(mass=mass, edges=edges)


def bucket_of(tokens: float) -> int:
    """Return the bucket of `EDGES` that holds a length; beyond the last edge, the last."""
    return min(max(bisect_left(EDGES, tokens) - 1, 0), len(EDGES) - 2)


def log_normal(median_tokens: float, sd_log: float) -> LengthDistribution:
    """Return a log-normal forecast on `EDGES`, the tail folded into the last bucket."""

    def below(tokens: float) -> float:
        return 0.5 * (1 + erf(log(tokens / median_tokens) / (sd_log * sqrt(2))))

    cumulative = [0.0, *(below(edge) for edge in EDGES[1:-1]), 1.0]
    return LengthDistribution(mass=tuple(high - low for low, high in pairwise(cumulative)))


PRIOR = log_normal(median_tokens=256, sd_log=1.2)
"""What is believed of an answer's length before anything has been seen."""
