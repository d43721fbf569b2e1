"""Arithmetic on probability by bucket: posterior, stretch, blur, temper, score (pure)."""

from math import erf, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gateway.core.lengths import EDGES, LengthDistribution
from gateway.predictor.query import Mass

EDGE = np.array(EDGES)
BUCKETS = len(EDGES) - 1
_INNER_EDGE = EDGE[1:-1]
WIDTH = np.diff(EDGE)
LOG_UPPER = np.log(EDGE[1:])

_Z = np.linspace(-6.0, 6.0, 1201)
_NORMAL = np.array([0.5 * (1 + erf(z / sqrt(2))) for z in _Z])


def buckets_of(lengths: ArrayLike) -> NDArray[np.intp]:
    """Return the bucket of each length in tokens, as `lengths.bucket_of` does for one."""
    return _INNER_EDGE.searchsorted(lengths)


total = np.add.reduce
"""The sum along the first axis: what `ndarray.sum` comes to, by a longer way."""


def to_lengths(mass: Mass) -> LengthDistribution:
    """Return the same forecast as the core's value object."""
    return LengthDistribution(mass=tuple((mass / total(mass)).tolist()))


def posterior(events: Mass, cut: Mass, parent: Mass, parent_weight: float) -> Mass:
    """Return a beta-Stacy posterior: Kaplan-Meier by bucket with `parent` as its prior.

    `events` and `cut` count finished and cut-off (right-censored) samples by bucket; the parent
    weighs as much as `parent_weight` samples.
    """
    seen = events + parent_weight * parent
    if total(cut) == 0:
        mass: Mass = seen / total(seen)
        return mass
    at_risk = np.cumsum((seen + cut)[::-1])[::-1]
    hazard: Mass = np.minimum(seen / np.maximum(at_risk, 1e-300), 1.0)
    alive = np.cumprod(np.concatenate(([1.0], 1.0 - hazard[:-1])))
    mass = alive * hazard
    # Samples cut in the last bucket leave a rest that belongs to it.
    mass[-1] += max(1.0 - mass.sum(), 0.0)
    return mass


def stretched(mass: Mass, factor: float) -> Mass:
    """Return the distribution of `factor` times a length; what passes the last edge stays in."""
    # Sums may pass 1 by a rounding, and the last difference must not fall below 0 for it.
    whole = np.minimum(np.concatenate(([0.0], np.cumsum(mass))), 1.0)
    below = np.interp(EDGE / factor, EDGE, whole)
    below[-1] = 1.0
    moved: Mass = np.diff(below)
    return moved


def median(mass: Mass) -> float:
    """Return the median length in tokens."""
    return float(np.interp(0.5, np.cumsum(mass), EDGE[1:]))


def blurred(log_lengths: NDArray[np.float64], sd_log: float) -> Mass:
    """Return the sum of a log-normal of that sd around each length (one unit of mass each)."""
    z = (LOG_UPPER[None, :-1] - log_lengths[:, None]) / sd_log
    below = np.interp(z, _Z, _NORMAL, left=0.0, right=1.0).sum(axis=0)
    return np.diff(below, prepend=0.0, append=float(len(log_lengths)))


def tempered(mass: Mass, exponent: float) -> Mass:
    """Return the forecast sharpened (exponent > 1) or flattened (< 1)."""
    if exponent == 1.0:
        return mass
    powered = mass**exponent
    result: Mass = powered / powered.sum()
    return result


def longest_of(mass: Mass, n: int) -> Mass:
    """Return the distribution of the longest of `n` independent answers."""
    if n == 1:
        return mass
    return np.diff(np.minimum(np.cumsum(mass), 1.0) ** n, prepend=0.0)


def mean_tokens(mass: Mass) -> float:
    """Return the mean length in tokens."""
    return float(mass @ (EDGE[:-1] + EDGE[1:])) / 2


def crps(mass: Mass, tokens: float) -> float:
    """Return the continuous ranked probability score in tokens: 0 is perfect."""
    return float(crps_of_each(mass, tokens))


def crps_of_each(masses: Mass, tokens: float) -> NDArray[np.float64]:
    """Return the score of each of some forecasts, which lie along the last axis."""
    high = np.cumsum(masses, axis=-1)
    low = high - masses
    bucket = int(buckets_of(tokens))
    part = min(max((tokens - EDGES[bucket]) / WIDTH[bucket], 0.0), 1.0)
    a, b = low[..., bucket], high[..., bucket]
    at = a + masses[..., bucket] * part

    def squares(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
        return (a * a + a * b + b * b) / 3

    before = squares(low[..., :bucket], high[..., :bucket]) @ WIDTH[:bucket]
    after = squares(1 - low[..., bucket + 1 :], 1 - high[..., bucket + 1 :]) @ WIDTH[bucket + 1 :]
    inside = part * squares(a, at) + (1 - part) * squares(1 - at, 1 - b)
    score: NDArray[np.float64] = before + after + WIDTH[bucket] * inside
    return score + max(tokens - EDGES[-1], 0.0)


def pit(mass: Mass, tokens: float, draw: float) -> float:
    """Return the randomised probability integral transform; `draw` is uniform in [0, 1).

    A bucket counts as one atom, so that stages whose answers are all alike stay calibrated.
    """
    bucket = int(buckets_of(tokens))
    return float(mass[:bucket].sum() + draw * mass[bucket])


def pit_if_cut(mass: Mass, tokens: float, draw: float) -> float:
    """Return the transform of an answer known only to be longer than `tokens`."""
    below = float(mass[: int(buckets_of(tokens))].sum())
    return below + draw * (1.0 - below)
