"""Prediction: what the predictor answers."""

from dataclasses import dataclass, field
from functools import cached_property

from gateway.core.lengths import LengthDistribution
from gateway.predictor.histograms import longest_of, to_lengths
from gateway.predictor.query import Level, Mass, Ticket


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A forecast, and the handle by which its outcome is reported.

    Its distribution is worked out when it is looked at: most of those that levels 0-3 give are
    narrowed before anybody does.
    """

    mass: Mass = field(repr=False, compare=False)
    """By bucket, for one choice, uncapped; the client's hint is in it."""
    level: Level
    asks_more: bool
    """Levels 4-5 could narrow it: the stage is wide and the history is large enough."""
    ticket: Ticket = field(repr=False, compare=False)

    @cached_property
    def output(self) -> LengthDistribution:
        """Tokens until the call ends: of the longest of n choices, capped by max_tokens."""
        n = self.ticket.query.n
        return self._one if n == 1 else self._capped(longest_of(self.mass, n))

    @property
    def work_tokens(self) -> float:
        """Expected tokens over all n choices."""
        return self.ticket.query.n * self._one.mean_tokens

    @cached_property
    def _one(self) -> LengthDistribution:
        return self._capped(self.mass)

    def _capped(self, mass: Mass) -> LengthDistribution:
        cap = self.ticket.query.max_tokens
        lengths = to_lengths(mass)
        return lengths if cap is None else lengths.capped(cap)
