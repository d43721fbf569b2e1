"""Kernel ridge regression of the log length."""

import numpy as np
import pytest

from gateway.predictor import guess as module
from gateway.predictor.floats import Floats as Room
from gateway.predictor.guess import Guess
from gateway.predictor.query import Vector

ROOM = Room(1, 8 * module.MAX_SAMPLES)
Floats = np.ndarray[tuple[int], np.dtype[np.float32]]


def fit(
    rows: Vector, target: Floats, is_cut: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> tuple[Guess, module.Floats]:
    """Fit to the rows as bytes."""
    scales = np.abs(rows).max(axis=1) / 127
    return module.fit(np.rint(rows / scales[:, None]).astype(np.int8), scales, target, is_cut)


def world(count: int, seed: int = 1) -> tuple[Vector, Floats]:
    """Return unit vectors, and log lengths that bend with them."""
    rng = np.random.default_rng(seed)
    found = rng.standard_normal((count, 8))
    rows = (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)
    target = 5 + 2 * rows[:, 0] + np.abs(rows[:, 1]) + 0.1 * rng.standard_normal(count)
    return rows, target.astype(np.float32)


def test_it_learns_what_bends() -> None:
    rows, target = world(300)
    guess, _ = fit(rows, target, np.zeros(300, bool))
    new, truth = world(200, seed=2)
    found = np.array([guess.of(row, ROOM) for row in new])
    assert np.corrcoef(found, truth)[0, 1] > 0.9


def test_it_says_the_centre_and_the_weighed_kernel() -> None:
    rows, _ = world(200)
    packed, scales = np.rint(127 * rows).astype(np.int8), np.full(200, 1 / 127, np.float32)
    weights = np.linspace(-1, 1, 200, dtype=np.float32)

    said = Guess(packed, scales, weights, 5.0).of(rows[3], ROOM)

    kernel = np.exp((packed * scales[:, None] @ rows[3] - 1) / module.KERNEL_WIDTH)
    assert said == pytest.approx(5.0 + weights @ kernel, rel=1e-5)


def test_what_it_says_of_its_own_rows_it_says_without_having_seen_them() -> None:
    rows, target = world(120)
    _, guesses = fit(rows, target, np.zeros(120, bool))
    others = np.arange(120) != 7
    without, _ = fit(rows[others], target[others], np.zeros(119, bool))
    # The centre, too, would move a little.
    assert guesses[7] == pytest.approx(without.of(rows[7], ROOM), abs=0.02)


def test_cut_samples_teach_nothing_but_are_guessed() -> None:
    rows, target = world(200)
    is_cut = np.arange(200) % 4 == 0
    spoiled = np.where(is_cut, 0, target).astype(np.float32)
    _, guesses = fit(rows, spoiled, is_cut)
    assert np.corrcoef(guesses[is_cut], target[is_cut])[0, 1] > 0.8


@pytest.mark.parametrize("size", [5, 128, 129, 768])
def test_a_matrix_is_factored_by_halves(size: int) -> None:
    rows, _ = world(size)
    matrix = np.exp(rows @ rows.T - 1) + np.eye(size, dtype=np.float32)
    factor = matrix.copy()
    module._invert_factor(factor, module._spare(size))
    assert factor.T @ factor @ matrix == pytest.approx(np.eye(size), abs=1e-4)
