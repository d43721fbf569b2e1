"""Constancy: how much an earlier answer to a prompt tells of the next, learned from repeats.

Most answers are near an earlier one, and some have nothing to do with it. What is forecast is a
blend: the earlier answers, each blurred by a spread, and what similar prompts say, worth so many
answers (the doubt). Of every answer that comes again it is worked out how each of a few blends
would have done, and the one that did best of late is used.
"""

import numpy as np

from gateway.predictor.histograms import blurred, crps_of_each
from gateway.predictor.query import Again, Mass

DOUBTS = np.array([0.25, 0.5, 1.0, 2.0, 4.0])
SPREADS = np.array([0.1, 0.2, 0.35])
"""Standard deviations of the log length."""
FIRST_DOUBT, FIRST_SPREAD = 0.5, 0.2
FIRST_CHANGE = 16
"""Answers that have to come again before another blend than the first is used."""
DECAY = 0.99
"""Of what is known, by answer: some hundred of them change a mind."""


class Constancy:
    """Of one model. One owner."""

    __slots__ = ("_losses", "_seen", "doubt", "spread")

    def __init__(self) -> None:
        self.doubt, self.spread = FIRST_DOUBT, FIRST_SPREAD
        self._losses = np.zeros((len(DOUBTS), len(SPREADS)))
        self._seen = 0

    def learn(self, again: Again, tokens: float) -> None:
        """Take in a finished answer to a prompt that had been answered before."""
        self._losses *= DECAY
        self._losses += crps_of_each(_blends(again), tokens)
        self._seen += 1
        if self._seen >= FIRST_CHANGE:
            doubt, spread = divmod(int(self._losses.argmin()), len(SPREADS))
            self.doubt, self.spread = float(DOUBTS[doubt]), float(SPREADS[spread])


def _blends(again: Again) -> Mass:
    """Return the forecast by doubt and spread."""
    doubts = DOUBTS[:, None, None]
    blends: Mass = doubts * again.parent + blurred(again.log_tokens, SPREADS)
    blends /= len(again.log_tokens) + doubts
    return blends
