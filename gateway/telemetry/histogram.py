"""Histogram: counts by bucket, in plain integers."""

from bisect import bisect_left

SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0),
)
"""Upper bounds in seconds, from a hop on the loopback to the longest generation."""

SHORT = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05),
    *(0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0),
)
"""Upper bounds in seconds, for steps of engines and for what the gateway itself takes."""


class Histogram:
    """Observations counted by upper bound; the last bucket has none."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Return (upper bound, how many are at most that), as Prometheus wants it."""
        buckets: list[tuple[str, float]] = []
        so_far = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            so_far += count
            buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(so_far)))
        return buckets
