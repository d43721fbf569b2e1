"""Prediction: what the predictor answers."""

from gateway.core.lengths import LengthDistribution
from gateway.predictor.histograms import longest_of, to_lengths
from gateway.predictor.query import Level, Mass, Ticket


class Prediction:
    """A forecast, and the handle by which its outcome is reported.

    Its distribution is worked out when it is looked at: most of those that levels 0-3 give are
    narrowed before anybody does.
    """

    __slots__ = ("_one", "_output", "asks_more", "level", "mass", "ticket")

    def __init__(self, *, mass: Mass, level: Level, asks_more: bool, ticket: Ticket) -> None:
        self.mass = mass
        """By bucket, for one choice, uncapped; the client's hint is in it."""
        self.level = level
        self.asks_more = asks_more
        """Levels 4-5 could narrow it: the stage is wide and the history is large enough."""
        self.ticket = ticket
        self._one: LengthDistribution | None = None
        self._output: LengthDistribution | None = None

    @property
    def output(self) -> LengthDistribution:
        """Tokens until the call ends: of the longest of n choices, capped by max_tokens."""
        if self._output is None:
            n = self.ticket.query.n
            self._output = self._of_one() if n == 1 else self._capped(longest_of(self.mass, n))
        return self._output

    @property
    def work_tokens(self) -> float:
        """Expected tokens over all n choices."""
        return self.ticket.query.n * self._of_one().mean_tokens

    def _of_one(self) -> LengthDistribution:
        if self._one is None:
            self._one = self._capped(self.mass)
        return self._one

    def _capped(self, mass: Mass) -> LengthDistribution:
        cap = self.ticket.query.max_tokens
        lengths = to_lengths(mass)
        return lengths if cap is None else lengths.capped(cap)
