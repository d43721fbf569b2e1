"""Token lengths drawn from published quantiles, correlated through a Gaussian copula (pure)."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, log, sqrt
from random import Random
from statistics import NormalDist

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution known by some quantiles: log-normal pieces between them.

    Below the first and above the last given share the length stays at that quantile, so what is
    drawn is clipped to the range that was published.
    """

    tokens_at: Mapping[float, float]
    """Share (0..1, exclusive) -> length in tokens; both rise."""
    _z: tuple[float, ...] = field(init=False, repr=False, compare=False)
    _log: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shares = sorted(self.tokens_at)
        lengths = [self.tokens_at[share] for share in shares]
        if lengths != sorted(lengths) or not lengths or lengths[0] < 1:
            raise ValueError(f"quantiles must be >= 1 token and rise with their share: {lengths}")
        object.__setattr__(self, "_z", tuple(_NORMAL.inv_cdf(share) for share in shares))
        object.__setattr__(self, "_log", tuple(log(length) for length in lengths))

    def at(self, z: float) -> int:
        """Return the length whose share is that of `z` in a standard normal distribution."""
        right = bisect_right(self._z, z)
        if right == 0:
            return round(exp(self._log[0]))
        if right == len(self._z):
            return round(exp(self._log[-1]))
        low, high = self._z[right - 1], self._z[right]
        part = (z - low) / (high - low)
        return round(exp(self._log[right - 1] + part * (self._log[right] - self._log[right - 1])))


def near(z: float, correlation: float, rng: Random) -> float:
    """Draw a standard normal that is correlated with `z`."""
    return correlation * z + sqrt(1 - correlation**2) * rng.gauss(0.0, 1.0)
