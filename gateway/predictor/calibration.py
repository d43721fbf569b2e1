"""Monitor: do the forecasts keep their promises? Scores, and what follows from them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gateway.predictor.histograms import EDGE, crps_of_each, mean_tokens, pit, pit_if_cut
from gateway.predictor.query import Ended, Level, Mass

PIT_BINS = 20
HALF_LIFE = 500
SHORT_HALF_LIFE = 250
LONG_HALF_LIFE = 2500
RECENT = 500
PINBALL = (10, 50, 90)
"""Quantiles whose loss is told, in percent."""
_PINBALL_SHARES = np.array(PINBALL) / 100
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


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A forecast (uncapped, for one choice) and what came of it; scored once for all monitors."""

    mass: Mass
    """What was answered."""
    stage_mass: Mass
    similar_mass: Mass | None
    """What levels 4-5 said, whether or not it was answered."""
    level: Level
    tokens: float
    ended: Ended

    @cached_property
    def mean_tokens(self) -> float:
        """Of the forecast."""
        return mean_tokens(self.mass)

    @cached_property
    def pinball_tokens(self) -> tuple[float, ...]:
        """The loss of each quantile of `PINBALL`."""
        overs = self.tokens - np.interp(_PINBALL_SHARES, np.cumsum(self.mass), EDGE[1:])
        return tuple(np.maximum(overs * _PINBALL_SHARES, overs * (_PINBALL_SHARES - 1)).tolist())

    @cached_property
    def crps_tokens(self) -> tuple[float, float] | None:
        """Of levels 4-5 and of the stage; None: nobody asked levels 4-5."""
        if self.similar_mass is None:
            return None
        similar, stage = crps_of_each(np.stack((self.similar_mass, self.stage_mass)), self.tokens)
        return float(similar), float(stage)


class Monitor:
    """The scores of one model, or of one stage of it. One owner; constant memory."""

    def __init__(self) -> None:
        self.samples = 0
        self.exponent = 1.0
        """Answers of level 4 and 5 are raised to it: < 1 widens them."""
        self.is_bypassed = False
        """Levels 4-5 did worse than the stage level: it answers in their place."""
        self._pit: NDArray[np.float64] = np.zeros(PIT_BINS)
        self._covers = {share: Average(HALF_LIFE) for share in (50, 80, 95)}
        self._narrow_cover = Average(SHORT_HALF_LIFE)
        self._pinball = {share: Average(HALF_LIFE) for share in PINBALL}
        self._ended = {ended: Average(HALF_LIFE) for ended in Ended}
        self._levels = {level: Average(HALF_LIFE) for level in Level}
        self._scores = {
            half_life: (Average(half_life), Average(half_life))
            for half_life in (SHORT_HALF_LIFE, LONG_HALF_LIFE)
        }
        self._scored = 0
        self._tempered_at = 0
        self._recent: NDArray[np.float32] = np.zeros((RECENT, 2), np.float32)
        self._finished = 0

    def add(self, outcome: Outcome, draw: float) -> None:
        """Take in one outcome; `draw` is uniform in [0, 1) and random."""
        self.samples += 1
        for ended, share in self._ended.items():
            share.add(float(ended is outcome.ended))
        for level, share in self._levels.items():
            share.add(float(level is outcome.level))
        is_cut = outcome.ended is not Ended.FINISHED
        place = (pit_if_cut if is_cut else pit)(outcome.mass, outcome.tokens, draw)
        self._pit *= 0.5 ** (1 / HALF_LIFE)
        self._pit[min(int(place * PIT_BINS), PIT_BINS - 1)] += 1
        for percent, cover in self._covers.items():
            cover.add(float(abs(place - 0.5) <= percent / 200))
        if outcome.level >= Level.SIMILAR:
            self._narrow_cover.add(float(abs(place - 0.5) <= 0.4))
        if not is_cut:
            self._score(outcome)
        if self.samples >= MIN_TO_ACT and self.samples - self._tempered_at >= ACT_EVERY:
            self._tempered_at = self.samples
            self._temper()

    def _score(self, outcome: Outcome) -> None:
        for loss, tokens in zip(self._pinball.values(), outcome.pinball_tokens, strict=True):
            loss.add(tokens)
        self._recent[self._finished % RECENT] = outcome.mean_tokens, outcome.tokens
        self._finished += 1
        if outcome.crps_tokens is None:
            return
        similar, stage = outcome.crps_tokens
        for own, parent in self._scores.values():
            own.add(similar)
            parent.add(stage)
        self._scored += 1
        skill = self.skill(SHORT_HALF_LIFE)
        if skill is None or self._scored < BYPASS_AFTER:
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
        own, parent = (average.mean for average in self._scores[half_life])
        if own is None or not parent:
            return None
        return 1 - own / parent

    def numbers(self) -> dict[str, float | None]:
        """Return everything, flat: names end in the unit where there is one."""
        total = self._pit.sum()
        flat: dict[str, float | None] = {
            "samples": self.samples,
            "exponent": self.exponent,
            "is_bypassed": float(self.is_bypassed),
            "skill_over_stage": self.skill(SHORT_HALF_LIFE),
            "skill_over_stage_long": self.skill(LONG_HALF_LIFE),
            "rank_correlation": self._rank_correlation(),
            "pit_distance": float(np.abs(np.cumsum(self._pit / total) - _EVEN).max())
            if total
            else None,
        }
        flat |= {f"cover_{percent}": cover.mean for percent, cover in self._covers.items()}
        flat |= {f"pinball_{p}_tokens": loss.mean for p, loss in self._pinball.items()}
        flat |= {f"share_{ended}": share.mean for ended, share in self._ended.items()}
        flat |= {
            f"share_level_{level.name.lower()}": share.mean for level, share in self._levels.items()
        }
        return flat

    def _rank_correlation(self) -> float | None:
        pairs = self._recent[: self._finished]
        if len(pairs) < 20:
            return None
        ranks = [_ranks(pairs[:, column]) for column in (0, 1)]
        if min(rank.std() for rank in ranks) == 0:
            return None
        return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


_EVEN = np.arange(1, PIT_BINS + 1) / PIT_BINS


def _ranks(values: NDArray[np.float32]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle: NDArray[np.float64] = (np.cumsum(counts) - (counts + 1) / 2)[inverse]
    return middle
