"""Arithmetic on probability by bucket: posterior, stretch, blur, temper, score (pure)."""

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from math import erf, sqrt
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from gateway.core.lengths import EDGES, LengthDistribution
from gateway.predictor.query import Mass

EDGE = np.array(EDGES)
BUCKETS = len(EDGES) - 1
_INNER_EDGE = EDGE[1:-1]
INNER_EDGES = EDGES[1:-1]
"""`bisect_left` finds the bucket of one length among these."""
_MIDDLE = (EDGE[:-1] + EDGE[1:]) / 2
_WIDTHS: list[float] = np.diff(EDGE).tolist()
_LOG_INNER = np.log(_INNER_EDGE)

_Z = np.linspace(-6.0, 6.0, 1201)
_NORMAL = np.array([0.5 * (1 + erf(z / sqrt(2))) for z in _Z])


buckets_of = _INNER_EDGE.searchsorted
"""The bucket of each length in tokens, as `lengths.bucket_of` tells it of one."""
# The stubs say what it returns without weights.
counted = cast(
    Callable[[NDArray[np.integer[Any]], NDArray[np.floating[Any]]], Mass],
    partial(np.bincount, minlength=BUCKETS),
)
"""The weights of some samples, added up by their buckets."""
total = np.add.reduce
"""The sum along the first axis: what `ndarray.sum` comes to, by a longer way."""


def to_lengths(mass: Mass) -> LengthDistribution:
    """Return the same forecast as the core's value object."""
    return LengthDistribution(mass=tuple((mass / total(mass)).tolist()))


def posterior(events: Mass, cut: Mass | None, parent: Mass, parent_weight: float) -> Mass:
    """Return a beta-Stacy posterior: Kaplan-Meier by bucket with `parent` as its prior.

    `events` and `cut` count finished and cut-off (right-censored) samples by bucket; None: none was
    cut. The parent weighs as much as `parent_weight` samples.
    """
    seen = parent_weight * parent
    seen += events
    if cut is None:
        seen /= total(seen)
        return seen
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


def blurred(log_lengths: NDArray[np.float64], sds_log: Mass) -> Mass:
    """Return the sum of a log-normal around each length (one unit of mass each), by its sd."""
    z = (_LOG_INNER - log_lengths[:, None]) / sds_log[:, None, None]
    below = np.interp(z, _Z, _NORMAL, left=0.0, right=1.0)
    reached = np.zeros((len(sds_log), BUCKETS + 1))
    total(below, 1, out=reached[:, 1:-1])
    reached[:, -1] = len(log_lengths)
    return reached[:, 1:] - reached[:, :-1]


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
    return float(mass.dot(_MIDDLE))


def crps(mass: Mass, tokens: float) -> float:
    """Return the continuous ranked probability score in tokens: 0 is perfect."""
    return float(crps_of_each(mass, tokens))


def crps_of_each(masses: Mass, tokens: float) -> NDArray[np.float64]:
    """Return the score of each of some forecasts, which lie along the last axis."""
    reached = np.zeros((*masses.shape[:-1], BUCKETS + 1))
    np.add.accumulate(masses, -1, out=reached[..., 1:])
    bucket = bisect_left(INNER_EDGES, tokens)
    reached[..., bucket + 1 :] -= 1.0
    whole = total(reached @ _SQUARES * reached, -1)
    low, high = reached[..., bucket], reached[..., bucket + 1]
    score: NDArray[np.float64] = whole + _correction(low, high, tokens, bucket)
    return score


def crps_of_reached(reached: Mass, tokens: float) -> list[float]:
    """Return the score of each row of forecasts, given what lies below each edge. Changes them."""
    bucket = bisect_left(INNER_EDGES, tokens)
    reached[:, bucket + 1 :] -= 1.0
    squares = reached.dot(_SQUARES)
    return [
        float(row.dot(square)) + _correction(low, high, tokens, bucket)
        for row, square, (low, high) in zip(
            reached, squares, reached[:, bucket : bucket + 2].tolist(), strict=True
        )
    ]


def _integral() -> Mass:
    """Return the form that integrates the square of what is linear between the edges."""
    form = np.zeros((BUCKETS + 1, BUCKETS + 1))
    for at, width in enumerate(_WIDTHS):
        form[at : at + 2, at : at + 2] += np.array([[2, 1], [1, 2]]) * width / 6
    return form


_SQUARES = _integral()
Score = TypeVar("Score", float, NDArray[np.float64])


def _correction(low: Score, high: Score, tokens: float, bucket: int) -> Score:
    """Return what the whole integral lacks: in the length's own bucket 1 is taken off halfway.

    There the forecast goes from `low` to 1 + `high`; past the last edge it is wrong as a whole.
    """
    width = _WIDTHS[bucket]
    part = min(max((tokens - EDGES[bucket]) / width, 0.0), 1.0)
    before = low + (high + 1.0 - low) * part
    after = before - 1.0
    split = part * (low * low + low * before + before * before)
    split = split + (1.0 - part) * (after * after + after * high + high * high)
    taken = low * low + low * high + high * high
    return width / 3 * (split - taken) + max(tokens - EDGES[-1], 0.0)
