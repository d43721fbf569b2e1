"""Generation: up to so many samples of one model, of which the nearest to a prompt can be found.

Small ones are searched by comparing all coarse vectors: as floats that takes less time than asking
a graph, and a fifth of its memory. Over large ones, once they are full, an hnswlib graph is built
on another thread, as far as the memory allows.
"""

from math import sqrt
from typing import NamedTuple

import hnswlib
import numpy as np
from numpy.typing import NDArray

from gateway.predictor import pages
from gateway.predictor.floats import Floats
from gateway.predictor.query import Vector
from gateway.predictor.vectors import Vectors

EXACT_BELOW = 1000
"""Samples of a generation up to which the whole vectors are compared: there is no time to save."""
GRAPH_ABOVE = 8192
"""Samples beyond which a graph is the sooner way. At 5,000 it took 41 to 96 us, by how cold the
caches were, and comparing all 37 to 45; an addition took it 50 us."""
LINKS, BUILD_EFFORT, SEARCH_EFFORT = 8, 80, 96
"""hnswlib's M, ef_construction and ef. Coarse vectors need few links: recall@128 is 0.98."""
GRAPH_BYTES, GRAPH_ITEM_BYTES = 65_536 * 40, 8 + 4 * (2 * LINKS + 1) + 100
"""Of a graph (its locks by label), and of an element of it besides its vector."""
BUILD_CHUNK = 256
SCANNED = 1024
"""Coarse vectors that are compared at a time where there is no room for floats of all."""
TOKENS, IS_CUT, STAGE, GUESS, SCALE = range(5)
"""Columns of what is kept of a sample beside its vector: one array, so that one look fetches it."""
FACTS = 5
COARSE_RANGE = 4.0
"""Coarse vectors reach that many times what their numbers are on average; what is beyond is cut."""
Facts = NDArray[np.float32]
Rows = NDArray[np.int8 | np.float32]
largest = np.maximum.reduce


class Sample(NamedTuple):
    """One ended call."""

    vector: Vector
    tokens: float
    is_cut: bool
    stage: int
    """The stage's number, as `Histories.stage_number` gives it."""
    guess: float = float("nan")


def is_large(room: int) -> bool:
    """Tell whether generations with so much room are searched by a graph once they are full."""
    return room > GRAPH_ABOVE


def unpacked(room: int, vectors: Vectors) -> int:
    """Return how many numbers what is compared of such a generation has, at most."""
    whole = min(room, EXACT_BELOW) * vectors.dim
    return whole if is_large(room) else max(whole, room * vectors.coarse_dim)


class Generation:
    """Up to `room` samples, vectors as bytes with a scale each."""

    def __init__(self, room: int, vectors: Vectors, rooms: Floats) -> None:
        self.size = 0
        self.room = room
        self._vectors, self._rooms = vectors, rooms
        self._is_large = is_large(room)
        # All room in one go: growing would leave holes.
        self.rows = pages.zeros((room, vectors.dim), np.int8)
        self.coarse = pages.zeros((room, vectors.coarse_dim), np.int8)
        # One scale for all of them: candidates are found without looking up each one's own.
        self.coarse_scale = np.float32(COARSE_RANGE / sqrt(vectors.coarse_dim) / 127)
        self.facts: Facts = pages.zeros((room, FACTS), np.float32)
        self.floats: NDArray[np.float32] | None = None
        """Of the vectors that are compared, as long as it is lent room for them."""
        self.graph: hnswlib.Index | None = None
        self.wants_graph = False
        """There is one, or one is being built, and the memory for it is spoken for."""

    @property
    def packed(self) -> NDArray[np.int8]:
        """The vectors there are: whole ones as long as they are few."""
        return (self.rows if self.size <= EXACT_BELOW else self.coarse)[: self.size]

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
        at, vector = self.size, sample.vector
        scale = max(float(largest(np.abs(vector))), 1e-9) / 127
        self.rows[at] = np.rint(vector / scale)
        self.facts[at] = (sample.tokens, sample.is_cut, sample.stage, sample.guess, scale)
        coarse = self._vectors.coarse(vector) / self.coarse_scale
        np.maximum(coarse, -127, out=coarse)
        np.minimum(coarse, 127, out=coarse)
        self.coarse[at] = np.rint(coarse, out=coarse)
        if self.floats is not None:
            if at < EXACT_BELOW:
                self.floats[at] = self.rows[at]
            elif at == EXACT_BELOW:
                self.floats = None
            else:
                self.floats[at] = coarse
        self.size = at + 1

    def near(self, coarse: Vector, count: int) -> tuple[Rows, Facts]:
        """Return rows and facts of about `count` of the nearest, or of all if there are few."""
        if self.size <= EXACT_BELOW:
            floats = self.floats
            if floats is None:
                floats = self._rooms.lend(self)
            rows = self.rows if floats is None else floats
            return rows[: self.size], self.facts[: self.size]
        where = self._candidates(coarse, count)
        return self.rows.take(where, 0), self.facts.take(where, 0)

    def _candidates(self, coarse: Vector, count: int) -> NDArray[np.intp]:
        if not self._is_large:
            floats = self.floats
            if floats is None:
                floats = self._rooms.lend(self)
            if floats is not None:
                compared: Vector = floats[: self.size].dot(coarse)
                return compared.argpartition(-count)[-count:]
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


class Build:
    """A graph over a full generation, to be built elsewhere (see `gateway.predictor.chore`)."""

    def __init__(self, generation: Generation, dim: int) -> None:
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
