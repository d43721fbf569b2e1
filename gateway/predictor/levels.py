"""Levels 0-3: what all traffic, the model, and the stage with its input length say.

Owned by the event loop; an answer costs some tens of microseconds, a sample less.
"""

from array import array
from bisect import bisect_left
from collections import OrderedDict
from math import exp, log, sqrt
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gateway.core.lengths import PRIOR
from gateway.predictor.hints import HintTrust
from gateway.predictor.histograms import (
    BUCKETS,
    INNER_EDGES,
    counted,
    median,
    posterior,
    stretched,
    total,
)
from gateway.predictor.query import Level, Mass

HALF_LIFE_SAMPLES = 2000
GLOBAL_PARENT, MODEL_PARENT, STAGE_PARENT = 4.0, 8.0, 2.0
"""How many samples each level's parent is worth."""
INPUT_BANDWIDTH = 0.1
"""In log input tokens. Narrower ones overfit to one database's prompts."""
INPUT_MIN_SAMPLES = 32
RING_START, RING_LIMIT = 32, 512
MAX_STAGES = 512
MAX_MODELS = 64
RATIO_SAMPLES = 8.0
"""A model's median counts in full once it has many more samples than this."""

K = TypeVar("K")
V = TypeVar("V")

_PRIOR: Mass = np.array(PRIOR.mass)


class Tally:
    """Finished and cut samples by bucket, older ones fading."""

    __slots__ = ("_cut", "_events", "_unit", "samples")

    _GROWTH = 2 ** (1 / HALF_LIFE_SAMPLES)

    def __init__(self) -> None:
        self._events = np.zeros(BUCKETS)
        self._cut: Mass | None = None
        """None: nothing was cut yet."""
        self._unit = 1.0
        self.samples = 0

    def add(self, bucket: int, is_cut: bool, weight: float) -> None:
        """Take in one sample. Newer ones weigh more, which is older ones weighing less."""
        self._unit *= self._GROWTH
        into = self._events
        if is_cut:
            if self._cut is None:
                self._cut = np.zeros(BUCKETS)
            into = self._cut
        into[bucket] += weight * self._unit
        self.samples += 1
        if self._unit > 1e9:
            self._events /= self._unit
            if self._cut is not None:
                self._cut /= self._unit
            self._unit = 1.0

    def posterior(self, parent: Mass, parent_weight: float) -> Mass:
        """Return the distribution, backed off to `parent`."""
        cut = None if self._cut is None else self._cut / self._unit
        return posterior(self._events / self._unit, cut, parent, parent_weight)


class Stage:
    """The last samples of one stage of one model, and how its clients' hints fared."""

    __slots__ = (
        "_bucket",
        "_cut",
        "_cut_mass",
        "_cuts",
        "_events",
        "_log_input",
        "_next",
        "_squares",
        "_sum",
        "_tokens",
        "_weight",
        "hints",
        "samples",
    )

    def __init__(self) -> None:
        self._log_input = np.zeros(RING_START, np.float32)
        self._tokens = array("f", bytes(4 * RING_START))
        self._weight = np.zeros(RING_START, np.float32)
        self._bucket = np.zeros(RING_START, np.uint8)
        self._cut = np.zeros(RING_START, np.bool_)
        self.samples = self._next = self._cuts = 0
        """How many are kept, where the next goes, and how many of those kept were cut."""
        # Sums over the ring, kept with every change. Of 24-bit numbers in 53 bits they are exact.
        self._events, self._cut_mass = np.zeros(BUCKETS), np.zeros(BUCKETS)
        self._sum = self._squares = 0.0
        self.hints = HintTrust()

    @property
    def nbytes(self) -> int:
        """Memory of the ring, in bytes."""
        return 14 * len(self._bucket) + 1600

    def add(
        self, log_input: float, bucket: int, tokens: float, is_cut: bool, weight: float
    ) -> None:
        """Take in one sample, in the place of the oldest if there is no room."""
        at = self._next
        if at == len(self._bucket):
            if at < RING_LIMIT:
                self._grow()
            else:
                at = 0
        if at < self.samples:
            self._count(at, -1)
        else:
            self.samples += 1
        self._log_input[at], self._bucket[at], self._cut[at] = log_input, bucket, is_cut
        self._tokens[at], self._weight[at] = tokens, weight
        self._count(at, 1)
        self._next = at + 1

    def _count(self, at: int, sign: int) -> None:
        into = self._events
        if self._cut[at]:
            into = self._cut_mass
            self._cuts += sign
        into[self._bucket[at]] += sign * float(self._weight[at])
        tokens = self._tokens[at]
        self._sum += sign * tokens
        self._squares += sign * tokens * tokens

    def _grow(self) -> None:
        """Double the room; what is in it is looked at as far as there are samples."""
        self._log_input = np.concatenate((self._log_input, self._log_input))
        self._weight = np.concatenate((self._weight, self._weight))
        self._bucket = np.concatenate((self._bucket, self._bucket))
        self._cut = np.concatenate((self._cut, self._cut))
        self._tokens *= 2

    def posterior(self, log_input: float, parent: Mass) -> Mass:
        """Return the stage's distribution for a prompt of that length, backed off to `parent`."""
        size = self.samples
        if size == 0:
            return parent
        cut = self._cut_mass if self._cuts else None
        whole = posterior(self._events, cut, parent, STAGE_PARENT)
        if size < INPUT_MIN_SAMPLES:
            return whole
        gap = self._log_input[:size] - log_input
        gap *= gap
        gap *= -0.5 / INPUT_BANDWIDTH**2
        weight = np.exp(gap, out=gap)
        weight *= self._weight[:size]
        weighed = float(total(weight))
        if weighed < 0.01:
            return whole
        share = min(weighed / float(weight.dot(weight)), 1.0)
        events, cut = self._by_bucket(weight)
        events *= share
        if cut is not None:
            cut *= share
        return posterior(events, cut, whole, STAGE_PARENT)

    def _by_bucket(self, weight: NDArray[np.float32]) -> tuple[Mass, Mass | None]:
        bucket = self._bucket[: self.samples]
        if not self._cuts:
            return counted(bucket, weight), None
        cut = self._cut[: self.samples]
        return (
            counted(bucket, weight * ~cut),
            counted(bucket, weight * cut),
        )

    def spread_tokens(self) -> tuple[float, float]:
        """Return mean and standard deviation of the kept lengths (cut ones as they are)."""
        mean = self._sum / self.samples
        return mean, sqrt(max(self._squares / self.samples - mean * mean, 0.0))


class _Model:
    __slots__ = ("fresh_until", "mass", "own", "tally")

    def __init__(self) -> None:
        self.tally = Tally()
        self.own = _PRIOR
        """What its own samples say, without other models."""
        self.mass = _PRIOR
        self.fresh_until = 0
        """Both are worked out anew once it has this many samples."""


class Answer(NamedTuple):
    """What levels 0-3 say of one call."""

    mass: Mass
    level: Level
    stage: Stage | None


class Levels:
    """The statistics of all models and stages, bounded; least recently used ones go first."""

    def __init__(self) -> None:
        self._all = Tally()
        self._models: OrderedDict[str, _Model] = OrderedDict()
        self._stages: OrderedDict[tuple[str, str], Stage] = OrderedDict()

    def answer(self, model: str, stage: str, prompt_tokens: int) -> Answer:
        """Return the forecast for one choice of such a call, uncapped."""
        known = self._models.get(model)
        samples = known.tally.samples if known else 0
        mass = self._model_mass(model, known)
        kind = self._stages.get((model, stage))
        if kind is not None and kind.samples:
            return Answer(kind.posterior(log(prompt_tokens + 1), mass), Level.STAGE, kind)
        if samples:
            return Answer(mass, Level.MODEL, kind)
        return Answer(mass, Level.GLOBAL if self._all.samples else Level.PRIOR, kind)

    def add(
        self, model: str, stage: str, prompt_tokens: int, tokens: float, is_cut: bool, weight: float
    ) -> None:
        """Take in one sample; `weight` is 1/n for each of n choices."""
        bucket = bisect_left(INNER_EDGES, tokens)
        self._all.add(bucket, is_cut, weight)
        known = _touch(self._models, model, _Model, MAX_MODELS)
        known.tally.add(bucket, is_cut, weight)
        kind = _touch(self._stages, (model, stage), Stage, MAX_STAGES)
        kind.add(log(prompt_tokens + 1), bucket, tokens, is_cut, weight)

    def stage(self, model: str, stage: str) -> Stage | None:
        """Return a stage's samples, if there are any."""
        return self._stages.get((model, stage))

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        stages = sum(stage.nbytes for stage in self._stages.values())
        return stages + 2_500 * (len(self._models) + 1)

    def _model_mass(self, model: str, known: _Model | None) -> Mass:
        if known is None:
            return self._borrowed(model, _PRIOR, 0)
        samples = known.tally.samples
        if samples >= known.fresh_until:
            known.own = known.tally.posterior(_PRIOR, GLOBAL_PARENT)
            parent = self._borrowed(model, known.own, samples)
            known.mass = known.tally.posterior(parent, MODEL_PARENT)
            known.fresh_until = samples + max(1, samples // 32)
        return known.mass

    def _borrowed(self, model: str, own: Mass, samples: int) -> Mass:
        """Return what other models' answers would be if they were as long as this one's."""
        others = [
            other
            for name, other in self._models.items()
            if name != model and other.tally.samples >= RATIO_SAMPLES
        ]
        if not others:
            return self._all.posterior(_PRIOR, GLOBAL_PARENT)
        own_median, trust = median(own), samples / (samples + RATIO_SAMPLES)
        borrowed = np.zeros(BUCKETS)
        for other in others[-8:]:
            if not other.fresh_until:  # nobody has asked for it yet, as after a restart
                other.own = other.tally.posterior(_PRIOR, GLOBAL_PARENT)
            ratio = exp(trust * log(own_median / median(other.own)))
            borrowed += stretched(other.own, ratio) * min(other.tally.samples, 100)
        mass: Mass = borrowed / total(borrowed)
        return mass


def _touch(kept: OrderedDict[K, V], key: K, make: type[V], limit: int) -> V:
    value = kept.get(key)
    if value is None:
        value = kept[key] = make()
        if len(kept) > limit:
            kept.popitem(last=False)
    else:
        kept.move_to_end(key)
    return value
