"""Levels 4-5: what similar prompts, and the same prompt, were answered with.

Owned by one thread (`gateway.predictor.owner`), which alone calls it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp

import numpy as np
from numpy.typing import NDArray

from gateway.predictor import guess
from gateway.predictor.chore import Chore
from gateway.predictor.constancy import Constancy
from gateway.predictor.floats import Floats
from gateway.predictor.generation import GUESS, IS_CUT, STAGE, TOKENS, Sample
from gateway.predictor.histograms import BUCKETS, blurred, buckets_of, counted, posterior, total
from gateway.predictor.history import Histories, History, Latest, Neighbours
from gateway.predictor.levels import RATIO_SAMPLES
from gateway.predictor.query import Again, Level, Mass, Ticket
from gateway.predictor.vectors import Vectors

NEIGHBOURS = 128
SIMILARITY_WIDTH = 0.1
GUIDED_SIMILARITY_WIDTH = 0.15
"""Wider where the guess is there to tell the neighbours apart."""
GUESS_WIDTH = 0.25
GUESS_SHIFT = 0.5
"""A neighbour's length moves half the way by which the guesses differ."""
OTHER_STAGE = 0.3
FAINT = 1e-36
"""Squared weights of 32 bits that add up to less are rounded away, to nothing in the end."""
SIMILAR_PARENT, SIMILAR_PARENT_EARLY, EARLY = 2.0, 8.0, 32
SAME_COSINE = 0.98
MAX_SAME = 32
REFIT_SHARE = 3
"""The guess is fitted anew when one new sample has come for so many that it was fitted to."""
REPEAT_NEWS = 0.25
"""What an answer to a prompt that was known counts there: it can but move a length."""
FOREIGN_BELOW = guess.MIN_SAMPLES
"""Own samples up to which other models' neighbours count, scaled to this model's lengths."""
FOREIGN_WEIGHT, FOREIGN_MODELS, FOREIGN_NEIGHBOURS = 0.15, 4, 32


@dataclass(slots=True)
class _Model:
    fitted: guess.Guess | None = None
    is_fitting: bool = False
    wanted: float = guess.MIN_SAMPLES
    """New samples until the guess is fitted anew."""
    constancy: Constancy = field(default_factory=Constancy)


class Fit:
    """A model's guess, to be worked out anew elsewhere (see `gateway.predictor.chore`)."""

    def __init__(self, known: _Model, latest: Latest) -> None:
        self._known, self._latest = known, latest
        self._result: tuple[guess.Guess, NDArray[np.float32]] | None = None

    def run(self) -> None:
        """Do the work. Any thread; touches nothing that others see."""
        latest = self._latest
        self._result = guess.fit(latest.rows, latest.scales, latest.log_tokens, latest.is_cut)

    def keep(self) -> None:
        """Use what came of it. The owner's thread."""
        self._known.is_fitting = False
        if self._result is not None:
            self._known.fitted, guesses = self._result
            self._latest.store(guesses)


@dataclass(slots=True)
class Similar:
    """Histories, vectors and guesses of all models."""

    vectors: Vectors
    histories: Histories
    _models: dict[str, _Model] = field(default_factory=dict)
    _guessing: Floats = field(init=False)
    """Room for the rows of the guess that was asked last."""

    def __post_init__(self) -> None:
        self._guessing = Floats(1, guess.MAX_SAMPLES * self.vectors.dim)

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        guesses = sum(m.fitted.nbytes for m in self._models.values() if m.fitted)
        guesses += self._guessing.nbytes
        return self.vectors.nbytes + self.histories.nbytes + guesses

    def embed(self, tickets: Sequence[Ticket]) -> None:
        """Give each ticket its vector, and drop its text."""
        waiting = [ticket for ticket in tickets if ticket.text]
        if not waiting:
            return
        rows = self.vectors.of([(ticket.stage, ticket.text) for ticket in waiting])
        for ticket, row in zip(waiting, rows, strict=True):
            ticket.vector, ticket.text = row, ""

    def forecast(self, ticket: Ticket) -> Level | None:
        """Fill in `similar_mass` from an embedded ticket; None: there is nothing to go by."""
        if ticket.vector is None:
            return None
        history = self.histories.get(ticket.query.model)
        own = 0 if history is None else len(history)
        found = None if history is None else history.nearest(ticket.vector, NEIGHBOURS)
        known = self._models.get(ticket.query.model)
        if known is not None and known.fitted is not None:
            ticket.guess = known.fitted.of(ticket.vector, self._guessing)
        number = self.histories.stage_number(ticket.stage)
        parent_weight = SIMILAR_PARENT if own >= EARLY else SIMILAR_PARENT_EARLY
        same = None
        tally = _Tally()
        if found is not None:
            same, rest = _apart(found, number)
            tally.add(rest, number, ticket.guess)
        if own < FOREIGN_BELOW:
            self._add_foreign(tally, ticket, number, history)
        if not tally.count and same is None:
            return None
        mass = tally.posterior(ticket.stage_mass, parent_weight)
        level = Level.SIMILAR
        if same is not None:
            constancy = known.constancy if known else Constancy()
            mass, level = _repeated(ticket, same, mass, constancy), Level.REPEATS
        ticket.similar_mass = mass
        return level

    def _add_foreign(
        self, tally: "_Tally", ticket: Ticket, number: int, history: History | None
    ) -> None:
        """Add other models' neighbours, their lengths scaled to this model's."""
        assert ticket.vector is not None
        own = len(history) if history else 0
        for other in self.histories.others(ticket.query.model, FOREIGN_MODELS):
            ratio = 1.0
            if history and own:
                apart = history.log_median_tokens() - other.log_median_tokens()
                ratio = exp(apart * own / (own + RATIO_SAMPLES))
            found = other.nearest(ticket.vector, FOREIGN_NEIGHBOURS)
            tally.add(found, number, float("nan"), FOREIGN_WEIGHT, ratio)

    def learn(self, ticket: Ticket, tokens: float, is_cut: bool) -> Chore | None:
        """Take in the outcome of an embedded ticket; the caller sees to the chore, if any."""
        if ticket.vector is None:
            return None
        known = self._models.get(ticket.query.model) or self._begin(ticket.query.model)
        if ticket.again is not None and not is_cut:
            known.constancy.learn(ticket.again, tokens)
        if ticket.guess != ticket.guess and known.fitted is not None:
            ticket.guess = known.fitted.of(ticket.vector, self._guessing)
        number = self.histories.stage_number(ticket.stage)
        sample = Sample(ticket.vector, tokens, is_cut, number, ticket.guess)
        news = 1.0 if ticket.again is None else REPEAT_NEWS
        return self.add(ticket.query.model, sample, news)

    def add(self, model: str, sample: Sample, news: float = 1.0) -> Chore | None:
        """Add a sample as it stands, as one read back from disk."""
        known = self._models.get(model) or self._begin(model)
        history, build = self.histories.add(model, sample)
        if history.added == 1:
            known.wanted = guess.MIN_SAMPLES  # its earlier history had been dropped
        known.wanted -= news
        if build is not None:
            return build
        if known.is_fitting or known.wanted > 0:
            return None
        latest = history.latest(guess.MAX_SAMPLES)
        # The work grows with the cube of the rows: at full size it must not be had too often.
        known.wanted = max(16, len(latest.rows) // REFIT_SHARE)
        if (~latest.is_cut).sum() < guess.MIN_SAMPLES * 3 // 4:
            return None
        known.is_fitting = True
        return Fit(known, latest)

    def _begin(self, model: str) -> _Model:
        if len(self._models) > 2 * len(self.histories):
            alive = self.histories.sizes()
            self._models = {name: m for name, m in self._models.items() if name in alive}
        known = self._models[model] = _Model()
        return known


class _Tally:
    """Neighbours as weighted evidence by bucket."""

    __slots__ = ("_cut", "_events", "_square", "_total", "count")

    def __init__(self) -> None:
        self._events: Mass | None = None
        self._cut: Mass | None = None
        self._total = self._square = 0.0
        self.count = 0

    def add(
        self,
        found: Neighbours,
        stage: int,
        own_guess: float,
        scale: float = 1.0,
        stretch: float = 1.0,
    ) -> None:
        """Take in neighbours, their weights times `scale`, their lengths times `stretch`."""
        facts = found.facts
        if not len(facts):
            return
        width = SIMILARITY_WIDTH
        tokens = facts[:, TOKENS]
        log_weight = np.minimum(found.similarity, 1.0)
        log_weight -= 1.0
        if own_guess == own_guess:  # not NaN
            width = GUIDED_SIMILARITY_WIDTH
            gap = own_guess - facts[:, GUESS]
            square = gap.dot(gap)
            if square != square:
                gap[gap != gap] = 0.0  # those that came before there were guesses
            # Where the guesses are so far apart that the length is absurd, the weight is nothing.
            tokens = tokens * np.exp(gap * GUESS_SHIFT)
            gap *= gap
            gap *= -0.5 * width / GUESS_WIDTH**2
            log_weight += gap
        log_weight *= 1.0 / width
        weight = np.exp(log_weight, out=log_weight)
        np.multiply(weight, OTHER_STAGE, out=weight, where=facts[:, STAGE] != stage)
        if scale != 1.0:
            weight *= scale
        bucket = buckets_of(tokens if stretch == 1.0 else tokens * stretch)
        self._total += float(total(weight))
        self._square += float(weight.dot(weight))
        self.count += len(facts)
        is_cut = facts[:, IS_CUT]
        if total(is_cut):
            cut = counted(bucket, weight * is_cut)
            self._cut = cut if self._cut is None else self._cut + cut
            weight = weight * (1 - is_cut)
        events = counted(bucket, weight)
        self._events = events if self._events is None else self._events + events

    def posterior(self, parent: Mass, parent_weight: float) -> Mass:
        if self._square < FAINT or self._events is None:
            return parent
        # As many samples as would, at equal weights, scatter as much.
        scale = self._total / self._square
        cut = None if self._cut is None else self._cut * scale
        return posterior(self._events * scale, cut, parent, parent_weight)


def _apart(found: Neighbours, stage: int) -> tuple[Neighbours | None, Neighbours]:
    """Return the repeats of the prompt, if there are any, and the rest."""
    if not len(found.similarity) or np.maximum.reduce(found.similarity) <= SAME_COSINE:
        return None, found
    near = found.similarity > SAME_COSINE
    near &= found.facts[:, STAGE] == stage
    where = np.flatnonzero(near)
    if not len(where):
        return None, found
    return found.at(where[:MAX_SAME]), found.at(np.flatnonzero(~near))


def _repeated(ticket: Ticket, same: Neighbours, parent: Mass, constancy: Constancy) -> Mass:
    tokens, is_cut = same.facts[:, TOKENS].astype(np.float64), same.facts[:, IS_CUT] > 0
    cut: Mass | None = None
    if is_cut.any():
        cut = np.bincount(buckets_of(tokens[is_cut]), minlength=BUCKETS).astype(np.float64)
        tokens = tokens[~is_cut]
        if not len(tokens):
            return posterior(np.zeros(BUCKETS), cut, parent, constancy.doubt)
    logs = np.log(np.maximum(tokens, 1.0))
    if cut is None:
        ticket.again = Again(logs, parent)
    (events,) = blurred(logs, np.array([constancy.spread]))
    return posterior(events, cut, parent, constancy.doubt)
