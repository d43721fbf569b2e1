"""History: the vectors and lengths of finished calls, by model, in two generations each.

The newest generation takes the additions, both are searched, and when the newest is full the
older is dropped whole: cheaper than deleting one by one, and its memory comes back at once.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import hnswlib
import numpy as np
from numpy.typing import NDArray

from gateway.predictor.query import Vector
from gateway.predictor.vectors import Vectors

EXACT_BELOW = 1000
"""Samples up to which all are compared: no graph's recall to lose, and no slower."""
LINKS, BUILD_EFFORT, SEARCH_EFFORT = 8, 80, 96
"""hnswlib's M, ef_construction and ef. Coarse vectors need few links: recall@128 is 0.98."""
GRAPH_BYTES, RESERVED_BYTES = 8 + 4 * (2 * LINKS + 1) + 45, 50
"""Of an element besides its vector: label, links, look-up; lock and pointers, set aside at once."""
TOKENS, IS_CUT, STAGE, GUESS, SCALE = range(5)
"""Columns of what is kept of a sample beside its vector: one array, so that one look fetches it."""
FACTS = 5
MAX_STAGE_NUMBERS = 65_536
Facts = NDArray[np.float32]


class Neighbours(NamedTuple):
    """Past calls near a prompt, in no order."""

    similarity: NDArray[np.float32]
    facts: Facts

    def at(self, where: NDArray[np.intp]) -> "Neighbours":
        """Return those at some positions."""
        return Neighbours(self.similarity[where], self.facts[where])


_NONE = Neighbours(np.zeros(0, np.float32), np.zeros((0, FACTS), np.float32))


@dataclass(frozen=True, slots=True)
class Sample:
    """One ended call."""

    vector: Vector
    tokens: float
    is_cut: bool
    stage: int
    """The stage's number, as `Histories.stage_number` gives it."""
    guess: float = float("nan")


class _Generation:
    """Up to `room` samples: a graph over coarse vectors, the whole ones as bytes beside it."""

    def __init__(self, room: int, vectors: Vectors) -> None:
        self.room, self.size = room, 0
        self._vectors = vectors
        held = min(64, room)
        self.rows: NDArray[np.int8] = np.zeros((held, vectors.dim), np.int8)
        self.facts: Facts = np.zeros((held, FACTS), np.float32)
        self.graph = hnswlib.Index(space="ip", dim=vectors.coarse_dim)
        # In one go: resizing copies everything, and pages nobody touched cost nothing.
        self.graph.init_index(max_elements=room, M=LINKS, ef_construction=BUILD_EFFORT)
        self.graph.set_num_threads(1)
        self.graph.set_ef(SEARCH_EFFORT)

    @property
    def nbytes(self) -> int:
        """Memory, in bytes: what the graph sets aside at once and what it fills."""
        graph = self.room * RESERVED_BYTES + self.size * (
            GRAPH_BYTES + 4 * self._vectors.coarse_dim
        )
        return graph + self.rows.nbytes + self.facts.nbytes

    def add(self, sample: Sample) -> None:
        """Take in one sample; there must be room."""
        at = self.size
        if at == len(self.rows):
            more = min(at, self.room - at)
            self.rows = np.pad(self.rows, ((0, more), (0, 0)))
            self.facts = np.pad(self.facts, ((0, more), (0, 0)))
        scale = max(float(np.abs(sample.vector).max()), 1e-9) / 127
        self.rows[at] = np.rint(sample.vector / scale)
        self.facts[at] = (sample.tokens, sample.is_cut, sample.stage, sample.guess, scale)
        self.graph.add_items(self._vectors.coarse(sample.vector)[None, :], [at], num_threads=1)
        self.size += 1

    def nearest(self, vector: Vector, coarse: Vector | None, count: int) -> Neighbours:
        """Return about `count` of the nearest; exact where `coarse` is None."""
        if coarse is None or self.size <= count:
            rows, facts = self.rows[: self.size], self.facts[: self.size]
        else:
            found = self.graph.knn_query(coarse, k=count, num_threads=1)[0][0].astype(np.intp)
            rows, facts = self.rows[found], self.facts[found]
        return Neighbours((rows.astype(np.float32) @ vector) * facts[:, SCALE], facts)


class Latest(NamedTuple):
    """A copy of a history's latest samples, and where their guesses belong."""

    places: list[tuple[_Generation, slice]]
    rows: Vector
    log_tokens: NDArray[np.float32]
    is_cut: NDArray[np.bool_]

    def store(self, guesses: NDArray[np.float32]) -> None:
        """Write a guess beside each sample (in vain where it has been dropped meanwhile)."""
        start = 0
        for generation, at in self.places:
            end = start + at.stop - at.start
            generation.facts[at, GUESS] = guesses[start:end]
            start = end


class History:
    """The samples of one model."""

    def __init__(self, window: int, vectors: Vectors) -> None:
        self._room = max(window // 2, 1)
        self._vectors = vectors
        self.generations = [_Generation(self._room, vectors)]
        self._log_median = 0.0
        self._median_until = 0
        self.added = 0

    def __len__(self) -> int:
        return sum(generation.size for generation in self.generations)

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return sum(generation.nbytes for generation in self.generations)

    def add(self, sample: Sample) -> None:
        """Take in one sample; the older generation goes when the newest is full."""
        newest = self.generations[-1]
        if newest.size == newest.room:
            newest = _Generation(self._room, self._vectors)
            self.generations = [self.generations[-1], newest]
        newest.add(sample)
        self.added += 1

    def nearest(self, vector: Vector, count: int) -> Neighbours:
        """Return the `count` most similar samples, or all if there are fewer."""
        coarse = None
        if len(self) > EXACT_BELOW:
            coarse = self._vectors.coarse(vector)
        # Of two generations each holds about half of the nearest; a quarter to spare is enough.
        each = count if coarse is None or len(self.generations) == 1 else count * 3 // 4
        parts = [part.nearest(vector, coarse, each) for part in self.generations if part.size]
        if not parts:
            return _NONE
        found = parts[0]
        if len(parts) > 1:
            found = Neighbours(*(np.concatenate(both) for both in zip(*parts, strict=True)))
        if len(found.similarity) <= count:
            return found
        return found.at(np.argpartition(found.similarity, -count)[-count:])

    def latest(self, count: int) -> "Latest":
        """Return the latest samples, for a regression over them."""
        places = []
        for generation in reversed(self.generations):
            taken = min(count, generation.size)
            places.append((generation, slice(generation.size - taken, generation.size)))
            count -= taken
        facts = np.concatenate([g.facts[at] for g, at in places])
        rows = np.concatenate([g.rows[at] for g, at in places]) * facts[:, SCALE, None]
        return Latest(places, rows, np.log1p(facts[:, TOKENS]), facts[:, IS_CUT] > 0)

    def log_median_tokens(self) -> float:
        """Return the median of the log length, as of some few samples ago."""
        if self.added >= self._median_until:
            tokens = np.concatenate([g.facts[: g.size, TOKENS] for g in self.generations])
            self._median_until = self.added + max(1, len(tokens) // 16)
            self._log_median = float(np.log(np.median(tokens))) if len(tokens) else 0.0
        return self._log_median


class Histories:
    """All models' histories, bounded in models and bytes; least recently used ones go first."""

    def __init__(self, vectors: Vectors, window: int, max_models: int, max_bytes: int) -> None:
        self._vectors, self._window = vectors, window
        self._max_models, self._max_bytes = max_models, max_bytes
        self._models: OrderedDict[str, History] = OrderedDict()
        self._stages: OrderedDict[str, int] = OrderedDict()
        self._adds = 0

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return sum(history.nbytes for history in self._models.values())

    def sizes(self) -> dict[str, int]:
        """Return how many samples each model has."""
        return {model: len(history) for model, history in self._models.items()}

    def get(self, model: str) -> History | None:
        """Return a model's history, if it has one."""
        return self._models.get(model)

    def others(self, model: str, limit: int) -> list[History]:
        """Return the most recently used histories of other models."""
        return [h for name, h in reversed(self._models.items()) if name != model][:limit]

    def stage_number(self, stage: str) -> int:
        """Return a small number for a stage key, the same as long as it is in use."""
        number = self._stages.pop(stage, None)
        if number is None:
            number = len(self._stages)
            if number == MAX_STAGE_NUMBERS:
                _, number = self._stages.popitem(last=False)
        self._stages[stage] = number
        return number

    def add(self, model: str, sample: Sample) -> History:
        """Take in one sample of a model and return its history."""
        history = self._models.get(model)
        if history is None:
            history = self._models[model] = History(self._window, self._vectors)
            if len(self._models) > self._max_models:
                self._models.popitem(last=False)
        self._models.move_to_end(model)
        history.add(sample)
        self._adds += 1
        if self._adds % 64 == 0:
            self._keep_bytes()
        return history

    def _keep_bytes(self) -> None:
        """Drop whole generations, the least recently used model's oldest first."""
        while self.nbytes > self._max_bytes:
            victim = next((h for h in self._models.values() if len(h.generations) > 1), None)
            if victim is not None:
                del victim.generations[0]
            elif len(self._models) > 1:
                self._models.popitem(last=False)
            else:
                return
