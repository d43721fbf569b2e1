"""Digest: how long things took, in buckets 5 % apart, so that percentiles can be asked for."""

from collections.abc import Iterable
from math import exp, floor, log

STEP = log(1.05)
LEAST = 1e-4
"""Seconds; whatever is shorter counts as this."""


class Digest:
    """Counts by bucket. A percentile is off by 2.5 % at most; memory grows with the spread only."""

    __slots__ = ("_counts", "count")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0

    def add(self, value: float) -> None:
        """Take in one value."""
        bucket = floor(log(max(value, LEAST)) / STEP)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.count += 1

    def quantile(self, share: float) -> float | None:
        """Return the value that this share lies at or below; None if there are no values."""
        return quantile([self], share)


def quantile(digests: Iterable[Digest], share: float) -> float | None:
    """Return a quantile of several digests together; None if all are empty."""
    counts: dict[int, int] = {}
    for digest in digests:
        for bucket, count in digest._counts.items():
            counts[bucket] = counts.get(bucket, 0) + count
    wanted = share * sum(counts.values())
    so_far = 0
    for bucket, count in sorted(counts.items()):
        so_far += count
        if so_far >= wanted:
            return exp((bucket + 0.5) * STEP)
    return None
