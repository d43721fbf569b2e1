"""Outcome: what came of a forecast, scored once for all who keep scores."""

from bisect import bisect_left, bisect_right

import numpy as np

from gateway.core.lengths import EDGES
from gateway.predictor.histograms import BUCKETS, INNER_EDGES, crps_of_reached, mean_tokens, total
from gateway.predictor.query import Ended, Level, Mass

PINBALL = (10, 50, 90)
"""Quantiles whose loss is told, in percent."""


class Outcome:
    """A forecast (uncapped, for one choice) and the answer's length."""

    __slots__ = (
        "_below",
        "_inside",
        "crps_tokens",
        "ended",
        "level",
        "mean_tokens",
        "pinball_tokens",
        "tokens",
    )

    def __init__(
        self,
        *,
        mass: Mass,
        stage_mass: Mass,
        similar_mass: Mass | None,
        level: Level,
        tokens: float,
        ended: Ended,
    ) -> None:
        """`mass` was answered; `similar_mass` is what levels 4-5 said, answered or not."""
        self.level, self.tokens, self.ended = level, tokens, ended
        self.mean_tokens = 0.0
        """Of the forecast; this and what follows only of an answer that ended by itself."""
        self.pinball_tokens: tuple[float, ...] = ()
        """The loss of each quantile of `PINBALL`."""
        self.crps_tokens: tuple[float, float] | None = None
        """Of levels 4-5 and of the stage; None: nobody asked levels 4-5."""
        bucket = bisect_left(INNER_EDGES, tokens)
        if ended is not Ended.FINISHED:
            self._below = float(total(mass[:bucket]))
            self._inside = 1.0 - self._below
            return
        masses: tuple[Mass, ...] = (mass,)
        if similar_mass is mass:  # as a rule
            masses = mass, stage_mass
        elif similar_mass is not None:
            masses = mass, similar_mass, stage_mass
        reached = np.zeros((len(masses), BUCKETS + 1))
        for row, each in zip(reached, masses, strict=True):
            np.add.accumulate(each, out=row[1:])
        below: list[float] = reached[0].tolist()
        self._below, self._inside = below[bucket], below[bucket + 1] - below[bucket]
        self.mean_tokens = mean_tokens(mass)
        self.pinball_tokens = tuple(_loss(below, percent / 100, tokens) for percent in PINBALL)
        if similar_mass is not None:
            similar, stage = crps_of_reached(reached[-2:], tokens)
            self.crps_tokens = similar, stage

    def place(self, draw: float) -> float:
        """Return the randomised probability integral transform; `draw` is uniform in [0, 1).

        A bucket counts as one atom, so that stages whose answers are all alike stay calibrated; of
        an answer that was cut short all that is longer does.
        """
        return self._below + draw * self._inside


def _loss(below: list[float], share: float, tokens: float) -> float:
    """Return the loss of a quantile: `below` is how much of the forecast lies below each edge."""
    at = min(max(bisect_right(below, share) - 1, 1), BUCKETS)
    quantile = EDGES[at]
    if at < BUCKETS and share > below[at]:
        part = (share - below[at]) / (below[at + 1] - below[at])
        quantile += (EDGES[at + 1] - quantile) * part
    over = tokens - quantile
    return max(over * share, over * (share - 1))
