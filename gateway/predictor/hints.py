"""HintTrust: how far the client's own length hint is believed, learned from how it fared."""

from math import exp, log, sqrt

import numpy as np

from gateway.core.lengths import log_normal
from gateway.predictor.histograms import buckets_of
from gateway.predictor.query import Mass

DECAY = 0.95
"""Of what is known, by finished call: some twenty calls change a mind."""
FIRST_SD_LOG = 0.5
FIRST_WEIGHT = 4.0


class HintTrust:
    """Bias, spread and credit of the hints of one stage's clients."""

    __slots__ = ("_log_odds", "_mean", "_square", "_weight")

    def __init__(self) -> None:
        self._weight = FIRST_WEIGHT
        self._mean = 0.0
        self._square = FIRST_WEIGHT * FIRST_SD_LOG**2
        self._log_odds = 0.0

    @property
    def share(self) -> float:
        """How much of a forecast the hint makes up, 0..1."""
        return min(max(1 / (1 + exp(-self._log_odds)), 0.02), 0.98)

    def mixed(self, mass: Mass, hint_tokens: float) -> Mass:
        """Return the forecast with the hint as a second opinion."""
        share = self.share
        mixed: Mass = (1 - share) * mass + share * self._opinion(hint_tokens)
        return mixed

    def learn(self, mass: Mass, hint_tokens: float, output_tokens: float) -> None:
        """Take in a finished answer; `mass` is what was forecast without the hint."""
        bucket = int(buckets_of(output_tokens))
        gain = log(max(self._opinion(hint_tokens)[bucket], 1e-4) / max(mass[bucket], 1e-4))
        self._log_odds = DECAY * self._log_odds + min(max(gain, -2.0), 2.0)
        error = log(max(output_tokens, 1.0) / hint_tokens)
        self._weight = DECAY * self._weight + 1
        self._mean = DECAY * self._mean + error
        self._square = DECAY * self._square + error**2

    def _opinion(self, hint_tokens: float) -> Mass:
        bias = self._mean / self._weight
        sd = sqrt(max(self._square / self._weight - bias**2, 0.0))
        expected = min(max(hint_tokens * exp(bias), 1.0), 1e6)
        return np.array(log_normal(expected, min(max(sd, 0.1), 1.5)).mass)
