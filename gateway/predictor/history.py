"""History: the vectors and lengths of ended calls, by model, in two generations each.

The newest generation takes the additions and is searched by comparing all its coarse vectors; once
it is full it never changes, and an hnswlib graph is built over it on another thread, as far as the
memory allows. When the next one is full the older is dropped whole: cheaper than deleting one by
one, and its memory comes back at once. What is found is compared again by the whole vectors.
"""

from collections import OrderedDict
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import hnswlib
import numpy as np
from numpy.typing import NDArray

from gateway.predictor import pages
from gateway.predictor.query import Vector
from gateway.predictor.vectors import Vectors

EXACT_BELOW = 1000
"""Samples of a generation up to which the whole vectors are compared: there is no time to save."""
LINKS, BUILD_EFFORT, SEARCH_EFFORT = 8, 80, 96
"""hnswlib's M, ef_construction and ef. Coarse vectors need few links: recall@128 is 0.98."""
GRAPH_BYTES, GRAPH_ITEM_BYTES = 65_536 * 40, 8 + 4 * (2 * LINKS + 1) + 100
"""Of a graph (its locks by label), and of an element of it besides its vector."""
BUILD_CHUNK = 256
SCANNED = 1024
"""Coarse vectors that are compared at a time: as floats they fit into the first caches."""
TOKENS, IS_CUT, STAGE, GUESS, SCALE = range(5)
"""Columns of what is kept of a sample beside its vector: one array, so that one look fetches it."""
FACTS = 5
COARSE_RANGE = 4.0
"""Coarse vectors reach that many times what their numbers are on average; what is beyond is cut."""
MAX_STAGE_NUMBERS = 65_536
Facts = NDArray[np.float32]


class Neighbours(NamedTuple):
    """Past calls near a prompt, in no order."""

    similarity: NDArray[np.float32]
    facts: Facts

    def at(self, where: NDArray[np.intp]) -> "Neighbours":
        """Return those at some positions."""
        return Neighbours(self.similarity[where], self.facts[where])


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
    """Up to `room` samples, vectors as bytes with a scale each."""

    def __init__(self, room: int, vectors: Vectors) -> None:
        self.size = 0
        self.room = room
        self._vectors = vectors
        # All room in one go: growing would leave holes.
        self.rows = pages.zeros((room, vectors.dim), np.int8)
        self.coarse = pages.zeros((room, vectors.coarse_dim), np.int8)
        # One scale for all of them: candidates are found without looking up each one's own.
        self.coarse_scale = np.float32(COARSE_RANGE / sqrt(vectors.coarse_dim) / 127)
        self.facts: Facts = pages.zeros((room, FACTS), np.float32)
        self.graph: hnswlib.Index | None = None
        self.wants_graph = False
        """There is one, or one is being built, and the memory for it is spoken for."""

    @property
    def graph_bytes(self) -> int:
        """What a graph takes or would take, in bytes."""
        return GRAPH_BYTES + self.room * (GRAPH_ITEM_BYTES + 4 * self._vectors.coarse_dim)

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return self.sample_bytes + (self.graph_bytes if self.wants_graph else 0)

    @property
    def sample_bytes(self) -> int:
        """Memory of the samples alone, in bytes."""
        return self.rows.nbytes + self.coarse.nbytes + self.facts.nbytes

    def add(self, sample: Sample) -> None:
        """Take in one sample; there must be room."""
        at = self.size
        facts = self.facts[at]
        facts[:SCALE] = (sample.tokens, sample.is_cut, sample.stage, sample.guess)
        facts[SCALE] = _as_bytes(sample.vector, self.rows[at])
        coarse = self._vectors.coarse(sample.vector) / self.coarse_scale
        self.coarse[at] = np.rint(np.minimum(np.maximum(coarse, -127), 127))
        self.size += 1

    def candidates(self, coarse: Vector, count: int) -> NDArray[np.intp] | None:
        """Return where about `count` of the nearest are; None: compare all, there are few."""
        if self.size <= EXACT_BELOW:
            return None
        if self.graph is not None:
            # Of prompts that are all but alike a graph falls into parts, and too few are reached.
            try:
                labels = self.graph.knn_query(coarse, k=count, num_threads=1)[0]
                return np.asarray(labels[0], np.intp)
            except RuntimeError:
                pass
        every = np.empty(self.size, np.float32)
        for start in range(0, self.size, SCANNED):
            part = self.coarse[start : min(start + SCANNED, self.size)]
            np.matmul(part.astype(np.float32), coarse, out=every[start : start + len(part)])
        return every.argpartition(-count)[-count:]

    def copy(self, where: NDArray[np.intp] | None, rows: NDArray[np.int8], facts: Facts) -> int:
        """Copy the samples at some positions, or all, and return how many there were."""
        if where is None:
            rows[: self.size], facts[: self.size] = self.rows[: self.size], self.facts[: self.size]
            return self.size
        count = len(where)
        # The mode does nothing here but that it saves a copy in between.
        self.rows.take(where, 0, out=rows[:count], mode="clip")
        self.facts.take(where, 0, out=facts[:count], mode="clip")
        return count


def _most_similar(vector: Vector, rows: NDArray[np.int8], facts: Facts, count: int) -> Neighbours:
    similarity = (rows.astype(np.float32) @ vector) * facts[:, SCALE]
    if len(similarity) > count:
        where = similarity.argpartition(-count)[-count:]
        similarity, facts = similarity.take(where), facts.take(where, 0)
    return Neighbours(similarity, facts)


def _as_bytes(vector: Vector, into: NDArray[np.int8]) -> float:
    """Write a vector as bytes, and return the scale that gives it back."""
    scale = max(float(np.abs(vector).max()), 1e-9) / 127
    into[:] = np.rint(vector / scale)
    return scale


class Build:
    """A graph over a full generation, to be built elsewhere (see `gateway.predictor.chore`)."""

    def __init__(self, generation: _Generation, dim: int) -> None:
        self._generation, self._dim = generation, dim
        self._graph: hnswlib.Index | None = None

    def run(self) -> None:
        """Do the work: a full generation does not change any more."""
        full = self._generation
        graph = hnswlib.Index(space="ip", dim=self._dim)
        graph.init_index(max_elements=full.room, M=LINKS, ef_construction=BUILD_EFFORT)
        graph.set_num_threads(1)
        graph.set_ef(SEARCH_EFFORT)
        for start in range(0, full.size, BUILD_CHUNK):
            at = np.arange(start, min(start + BUILD_CHUNK, full.size))
            graph.add_items(full.coarse[at] * full.coarse_scale, at, num_threads=1)
        self._graph = graph

    def keep(self) -> None:
        """Search by it from now on, unless the memory was needed for something else."""
        if self._generation.wants_graph:
            self._generation.graph = self._graph


class Latest(NamedTuple):
    """A copy of a history's latest samples, and where their guesses belong."""

    places: list[tuple[_Generation, slice]]
    rows: NDArray[np.int8]
    scales: NDArray[np.float32]
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

    @property
    def nbytes_when_full(self) -> int:
        """Memory of two generations and of the graphs there are, in bytes."""
        return self.nbytes + self.generations[0].sample_bytes * (2 - len(self.generations))

    def add(self, sample: Sample) -> _Generation | None:
        """Take in one sample; return the generation that is full since, if one is."""
        full, newest = None, self.generations[-1]
        if newest.size == newest.room:
            full, newest = newest, _Generation(self._room, self._vectors)
            self.generations = [full, newest]
        newest.add(sample)
        self.added += 1
        return full

    def nearest(self, vector: Vector, count: int) -> Neighbours:
        """Return the `count` most similar samples, or all if there are fewer.

        Half as many again where all are compared anyway: there they cost nothing, and of a short
        history the most similar are not similar enough to do alone.
        """
        if all(part.size <= EXACT_BELOW for part in self.generations):
            count += count // 2
        coarse = self._vectors.coarse(vector)
        # Of two generations each holds about half of the nearest; a quarter to spare is enough.
        each = count if len(self.generations) == 1 else count * 3 // 4
        chosen = [(part, part.candidates(coarse, each)) for part in self.generations]
        total = sum(part.size if where is None else len(where) for part, where in chosen)
        rows = np.empty((total, self._vectors.dim), np.int8)
        facts: Facts = np.empty((total, FACTS), np.float32)
        start = 0
        for part, where in chosen:
            start += part.copy(where, rows[start:], facts[start:])
        return _most_similar(vector, rows, facts, count)

    def latest(self, count: int) -> "Latest":
        """Return the latest samples, for a regression over them."""
        places = []
        for generation in reversed(self.generations):
            taken = min(count, generation.size)
            places.append((generation, slice(generation.size - taken, generation.size)))
            count -= taken
        facts = np.concatenate([g.facts[at] for g, at in places])
        rows = np.concatenate([g.rows[at] for g, at in places])
        is_cut = facts[:, IS_CUT] > 0
        return Latest(places, rows, facts[:, SCALE].copy(), np.log1p(facts[:, TOKENS]), is_cut)

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

    def add(self, model: str, sample: Sample) -> tuple[History, Build | None]:
        """Take in one sample of a model; return its history, and a graph to build if one is due."""
        history = self._models.get(model)
        if history is None:
            history = self._models[model] = History(self._window, self._vectors)
            if len(self._models) > self._max_models:
                self._models.popitem(last=False)
            self._keep_bytes()
        self._models.move_to_end(model)
        full = history.add(sample)
        if full is None:
            return history, None
        self._keep_bytes()
        if full.room <= EXACT_BELOW or not self._has_room_for(full):
            return history, None
        full.wants_graph = True
        return history, Build(full, self._vectors.coarse_dim)

    def _has_room_for(self, full: _Generation) -> bool:
        """Tell whether a graph would fit beside all that the models known now may come to hold.

        One that has to go again is work for nothing, and leaves holes.
        """
        held = sum(history.nbytes_when_full for history in self._models.values())
        return held + full.graph_bytes <= self._max_bytes

    def _keep_bytes(self) -> None:
        """Drop graphs, then generations, then models: the least recently used model's first."""
        while self.nbytes > self._max_bytes:
            histories = list(self._models.values())
            graph = next((g for h in histories for g in h.generations if g.wants_graph), None)
            old = next((h for h in histories if len(h.generations) > 1), None)
            if graph is not None:
                graph.graph, graph.wants_graph = None, False
            elif old is not None:
                del old.generations[0]
            elif len(histories) > 1:
                self._models.popitem(last=False)
            else:
                return
