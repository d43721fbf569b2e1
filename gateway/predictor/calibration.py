"""Monitor: do the forecasts keep their promises? Scores, and what follows from them."""

from array import array

import numpy as np
from numpy.typing import NDArray

from gateway.predictor.outcome import PINBALL, Outcome
from gateway.predictor.query import Ended, Level

PIT_BINS = 20
HALF_LIFE = 500
SHORT_HALF_LIFE = 250
LONG_HALF_LIFE = 2500
RECENT = 500
COVERS = (50, 80, 95)
"""Central intervals whose cover is told, in percent."""
MIN_TO_ACT = 200
ACT_EVERY = 100
EXPONENT_RANGE = (0.5, 1.4)
BYPASS_AFTER = 500
RESUME_SKILL = 0.01


class Average:
    """A mean that forgets, with a half-life in samples."""

    __slots__ = ("_keep", "_total", "_weight")

    def __init__(self, half_life: float) -> None:
        self._keep = 0.5 ** (1 / half_life)
        self._total = self._weight = 0.0

    def add(self, value: float) -> None:
        """Take in one value."""
        self._total = self._keep * self._total + value
        self._weight = self._keep * self._weight + 1

    @property
    def mean(self) -> float | None:
        """The mean; None before the first value."""
        return self._total / self._weight if self._weight else None


class Fading:
    """Sums that forget, all at one half-life in steps.

    Older values weigh less, which is newer ones weighing more: nothing is touched but what grows.
    """

    __slots__ = ("_growth", "_unit", "sums")

    def __init__(self, size: int, half_life: float) -> None:
        self.sums = [0.0] * size
        self._growth = 2 ** (1 / half_life)
        self._unit = 1.0

    def step(self) -> float:
        """Let all fade by one step; return what a value of now has to be multiplied with."""
        self._unit *= self._growth
        if self._unit > 1e9:
            self.sums = [value / self._unit for value in self.sums]
            self._unit = 1.0
        return self._unit


# Where what is in the sums of all outcomes: their number, and shares of it.
_ENDED_AT = {ended: 1 + number for number, ended in enumerate(Ended)}
_LEVEL_AT = 1 + len(Ended)
_COVER_AT = _LEVEL_AT + len(Level)
_PIT_AT = _COVER_AT + len(COVERS)


class Monitor:
    """The scores of one model, or of one stage of it. One owner; constant memory."""

    def __init__(self) -> None:
        self.samples = 0
        self.exponent = 1.0
        """Answers of level 4 and 5 are raised to it: < 1 widens them."""
        self.is_bypassed = False
        """Levels 4-5 did worse than the stage level: it answers in their place."""
        self._shares = Fading(_PIT_AT + PIT_BINS, HALF_LIFE)
        self._losses = Fading(1 + len(PINBALL), HALF_LIFE)
        self._narrow_cover = Average(SHORT_HALF_LIFE)
        self._scores = {SHORT_HALF_LIFE: (0.0, 0.0), LONG_HALF_LIFE: (0.0, 0.0)}
        """Fading sums over calls where both are known: of levels 4-5, of the stage."""
        self._scored = 0
        self._tempered_at = 0
        self._recent = array("f"), array("f")
        """Means that were forecast, and the lengths."""
        self._finished = 0

    def add(self, outcome: Outcome, draw: float) -> None:
        """Take in one outcome; `draw` is uniform in [0, 1) and random."""
        self.samples += 1
        place = outcome.place(draw)
        off = abs(place - 0.5)
        unit = self._shares.step()
        sums = self._shares.sums
        sums[0] += unit
        sums[_ENDED_AT[outcome.ended]] += unit
        sums[_LEVEL_AT + outcome.level] += unit
        sums[_PIT_AT + min(int(place * PIT_BINS), PIT_BINS - 1)] += unit
        for at, percent in enumerate(COVERS, _COVER_AT):
            if off <= percent / 200:
                sums[at] += unit
        if outcome.level >= Level.SIMILAR:
            self._narrow_cover.add(1.0 if off <= 0.4 else 0.0)
        if outcome.ended is Ended.FINISHED:
            self._score(outcome)
        if self.samples >= MIN_TO_ACT and self.samples - self._tempered_at >= ACT_EVERY:
            self._tempered_at = self.samples
            self._temper()

    def _score(self, outcome: Outcome) -> None:
        unit = self._losses.step()
        sums = self._losses.sums
        sums[0] += unit
        for at, loss in enumerate(outcome.pinball_tokens, 1):
            sums[at] += unit * loss
        means, lengths = self._recent
        if self._finished < RECENT:
            means.append(outcome.mean_tokens)
            lengths.append(outcome.tokens)
        else:
            means[self._finished % RECENT] = outcome.mean_tokens
            lengths[self._finished % RECENT] = outcome.tokens
        self._finished += 1
        if outcome.crps_tokens is None:
            return
        similar, stage = outcome.crps_tokens
        for half_life, (own, parent) in self._scores.items():
            keep = _KEEP[half_life]
            self._scores[half_life] = keep * own + similar, keep * parent + stage
        self._scored += 1
        if self._scored < BYPASS_AFTER:
            return
        skill = self.skill(SHORT_HALF_LIFE)
        if skill is None:
            return
        if skill < 0:
            self.is_bypassed = True
        elif skill > RESUME_SKILL:
            self.is_bypassed = False

    def _temper(self) -> None:
        cover = self._narrow_cover.mean
        if cover is None:
            return
        low, high = EXPONENT_RANGE
        if cover < 0.72:
            self.exponent = max(self.exponent * 0.95, low)
        elif cover > 0.88:
            self.exponent = min(self.exponent * 1.05, high)
        elif self.exponent != 1.0:
            # Back home step by step as long as nothing is wrong.
            self.exponent += 0.2 * (1.0 - self.exponent) if 0.76 < cover < 0.84 else 0.0

    def skill(self, half_life: int = SHORT_HALF_LIFE) -> float | None:
        """Return 1 - CRPS(levels 4-5) / CRPS(stage level), over calls where both are known."""
        own, parent = self._scores[half_life]
        return 1 - own / parent if parent else None

    def numbers(self) -> dict[str, float | None]:
        """Return everything, flat: names end in the unit where there is one."""
        seen, *shares = self._shares.sums
        means = [share / seen if seen else None for share in shares]
        finished, *losses = self._losses.sums
        flat: dict[str, float | None] = {
            "samples": self.samples,
            "exponent": self.exponent,
            "is_bypassed": float(self.is_bypassed),
            "skill_over_stage": self.skill(SHORT_HALF_LIFE),
            "skill_over_stage_long": self.skill(LONG_HALF_LIFE),
            "rank_correlation": self._rank_correlation(),
            "pit_distance": float(np.abs(np.cumsum(shares[_PIT_AT - 1 :]) / seen - _EVEN).max())
            if seen
            else None,
        }
        names = (
            *(f"share_{ended}" for ended in Ended),
            *(f"share_level_{level.name.lower()}" for level in Level),
            *(f"cover_{percent}" for percent in COVERS),
        )
        flat |= dict(zip(names, means, strict=False))
        flat |= {
            f"pinball_{percent}_tokens": loss / finished if finished else None
            for percent, loss in zip(PINBALL, losses, strict=True)
        }
        return flat

    def _rank_correlation(self) -> float | None:
        if self._finished < 20:
            return None
        ranks = [_ranks(np.array(column, np.float32)) for column in self._recent]
        if min(rank.std() for rank in ranks) == 0:
            return None
        return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


_KEEP = {half_life: 0.5 ** (1 / half_life) for half_life in (SHORT_HALF_LIFE, LONG_HALF_LIFE)}
_EVEN = np.arange(1, PIT_BINS + 1) / PIT_BINS


def _ranks(values: NDArray[np.float32]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle: NDArray[np.float64] = (np.cumsum(counts) - (counts + 1) / 2)[inverse]
    return middle
