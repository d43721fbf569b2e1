"""History: the vectors and lengths of ended calls, by model, in two generations each.

The newest generation takes the additions; once it is full it never changes. When the next one is
full the older is dropped whole: cheaper than deleting one by one, and its memory comes back at
once. What is found by coarse vectors is compared again by the whole ones.
"""

from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gateway.predictor.floats import Floats
from gateway.predictor.generation import (
    EXACT_BELOW,
    GUESS,
    IS_CUT,
    SCALE,
    TOKENS,
    Build,
    Facts,
    Generation,
    Rows,
    Sample,
    is_large,
    unpacked,
)
from gateway.predictor.query import Vector
from gateway.predictor.vectors import Vectors

MAX_STAGE_NUMBERS = 65_536
ROOMS = 2
"""Generations that are kept as floats: those of the model that was asked last."""


class Neighbours(NamedTuple):
    """Past calls near a prompt, in no order."""

    similarity: NDArray[np.float32]
    facts: Facts

    def at(self, where: NDArray[np.intp]) -> "Neighbours":
        """Return those at some positions."""
        return Neighbours(self.similarity[where], self.facts[where])


def _most_similar(vector: Vector, rows: Rows, facts: Facts, count: int) -> Neighbours:
    similarity = rows.astype(np.float32, copy=False).dot(vector)
    similarity *= facts[:, SCALE]
    if len(similarity) > count:
        where = similarity.argpartition(-count)[-count:]
        similarity, facts = similarity.take(where), facts.take(where, 0)
    return Neighbours(similarity, facts)


class Latest(NamedTuple):
    """A copy of a history's latest samples, and where their guesses belong."""

    places: list[tuple[Generation, slice]]
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


def room_of(window: int) -> int:
    """Return how many samples each of the two generations of a window may hold."""
    return max(window // 2, 1)


class History:
    """The samples of one model."""

    def __init__(self, window: int, vectors: Vectors, rooms: Floats) -> None:
        self._room = room_of(window)
        self._vectors, self._rooms = vectors, rooms
        self.generations = [Generation(self._room, vectors, rooms)]
        self._log_median = 0.0
        self._median_until = 0
        self.added = 0

    def __len__(self) -> int:
        oldest, newest = self.generations[0], self.generations[-1]
        return newest.size if oldest is newest else oldest.size + newest.size

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return sum(generation.nbytes for generation in self.generations)

    @property
    def nbytes_when_full(self) -> int:
        """Memory of two generations and of the graphs there are, in bytes."""
        return self.nbytes + self.generations[0].sample_bytes * (2 - len(self.generations))

    def add(self, sample: Sample) -> Generation | None:
        """Take in one sample; return the generation that is full since, if one is."""
        full, newest = None, self.generations[-1]
        if newest.size == newest.room:
            full, newest = newest, Generation(self._room, self._vectors, self._rooms)
            self.generations = [full, newest]
        newest.add(sample)
        self.added += 1
        return full

    def nearest(self, vector: Vector, count: int) -> Neighbours:
        """Return the `count` most similar samples, or all if there are fewer.

        Half as many again where all are compared anyway: there they cost nothing, and of a short
        history the most similar are not similar enough to do alone.
        """
        parts = self.generations
        newest = parts[-1]
        if parts[0].size <= EXACT_BELOW:
            count += count // 2
            coarse = vector  # nobody looks at it
        else:
            coarse = self._vectors.coarse(vector)
        if len(parts) == 1:
            return _most_similar(vector, *newest.near(coarse, count), count)
        # Of two generations each holds about half of the nearest; a quarter to spare is enough.
        each = count * 3 // 4
        old_rows, old_facts = parts[0].near(coarse, each)
        new_rows, new_facts = newest.near(coarse, each)
        rows = np.concatenate((old_rows, new_rows))
        return _most_similar(vector, rows, np.concatenate((old_facts, new_facts)), count)

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
        self.rooms = Floats(ROOMS, unpacked(room_of(window), vectors))
        """Of what was searched last, as long as there is memory for it."""

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return sum(history.nbytes for history in self._models.values()) + self.rooms.nbytes

    def __len__(self) -> int:
        return len(self._models)

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
        number = self._stages.get(stage)
        if number is not None:
            self._stages.move_to_end(stage)
            return number
        number = len(self._stages)
        if number == MAX_STAGE_NUMBERS:
            _, number = self._stages.popitem(last=False)
        self._stages[stage] = number
        return number

    def add(self, model: str, sample: Sample) -> tuple[History, Build | None]:
        """Take in one sample of a model; return its history, and a graph to build if one is due."""
        history = self._models.get(model)
        if history is None:
            history = self._models[model] = History(self._window, self._vectors, self.rooms)
            if len(self._models) > self._max_models:
                self._models.popitem(last=False)
            self._keep_bytes()
        self._models.move_to_end(model)
        full = history.add(sample)
        if full is None:
            return history, None
        self._keep_bytes()
        if not is_large(full.room) or not self._has_room_for(full):
            return history, None
        full.wants_graph = True
        return history, Build(full, self._vectors.coarse_dim)

    def _has_room_for(self, full: Generation) -> bool:
        """Tell whether a graph would fit beside all that the models known now may come to hold.

        One that has to go again is work for nothing, and leaves holes.
        """
        held = sum(history.nbytes_when_full for history in self._models.values())
        return held + full.graph_bytes <= self._max_bytes

    def _keep_bytes(self) -> None:
        """Drop floats, graphs, generations, models, the least recently used model's first."""
        if self.nbytes > self._max_bytes:
            self.rooms.give_up()
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
