"""One generation of samples."""

import numpy as np
import pytest

from gateway.predictor.embedder import HashingEmbedder
from gateway.predictor.floats import Floats
from gateway.predictor.generation import EXACT_BELOW, SCALE, TOKENS, Generation, Sample, unpacked
from gateway.predictor.query import Vector
from gateway.predictor.vectors import Vectors

VECTORS = Vectors(HashingEmbedder())
COUNT = EXACT_BELOW + 200


def a_room(samples: int) -> Floats:
    """Return room for one generation."""
    return Floats(1, unpacked(samples, VECTORS))


def unit(count: int) -> Vector:
    """Return vectors of length one."""
    rows = np.random.default_rng(2).standard_normal((count, VECTORS.dim))
    found: Vector = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return found


def test_a_sample_is_kept_to_the_precision_of_a_byte() -> None:
    kept, (vector,) = Generation(4, VECTORS, a_room(4)), unit(1)
    kept.add(Sample(vector, 70.0, True, 3, 4.5))
    rows, facts = kept.near(vector, 10)
    assert facts[0, :SCALE] == pytest.approx([70.0, 1.0, 3.0, 4.5])
    assert rows[0] * facts[0, SCALE] == pytest.approx(vector, abs=0.51 * float(facts[0, SCALE]))


def test_floats_lent_in_between_take_part_in_what_comes_then() -> None:
    kept, vectors = Generation(2 * COUNT, VECTORS, a_room(2 * COUNT)), unit(COUNT + 1)
    for number, vector in enumerate(vectors[:-1]):
        kept.add(Sample(vector, number, False, 0))
    kept.near(VECTORS.coarse(vectors[0]), 1)  # lends it the room
    kept.add(Sample(vectors[-1], COUNT, False, 0))

    _, facts = kept.near(VECTORS.coarse(vectors[-1]), 1)

    assert kept.floats is not None
    assert facts[:, TOKENS].tolist() == [COUNT]


def test_those_that_share_too_little_room_find_what_each_alone_would() -> None:
    rooms = a_room(COUNT)
    many, vectors = [Generation(COUNT, VECTORS, rooms) for _ in range(3)], unit(3 * COUNT)
    for number, vector in enumerate(vectors):
        many[number % 3].add(Sample(vector, number, False, 0))
    for number in range(21):
        coarse = VECTORS.coarse(vectors[number])
        _, facts = many[number % 3].near(coarse, 1)
        assert facts[:, TOKENS].tolist() == [number]


def test_as_it_grows_whole_vectors_are_compared_and_then_coarse_ones() -> None:
    kept, vectors = Generation(COUNT, VECTORS, a_room(COUNT)), unit(COUNT)
    for number, vector in enumerate(vectors):
        kept.add(Sample(vector, number, False, 0))
        if number % 50 == 0 or number in range(EXACT_BELOW - 2, EXACT_BELOW + 3):
            rows, facts = kept.near(VECTORS.coarse(vector), 1)
            whole = rows * facts[:, SCALE, None]
            assert whole[-1] == pytest.approx(vector, abs=0.51 * float(facts[-1, SCALE]))
            assert len(rows) == (number + 1 if number < EXACT_BELOW else 1)
