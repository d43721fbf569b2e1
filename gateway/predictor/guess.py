"""Guess: kernel ridge regression of the log length on the vectors (pure).

Not a forecast by itself, but a second coordinate: of prompts equally similar, those whose guessed
length is alike say more.
"""

from math import exp

import numpy as np
from numpy.typing import NDArray

from gateway.predictor import pages
from gateway.predictor.floats import Floats as Room
from gateway.predictor.query import Vector

KERNEL_WIDTH = 0.35
"""On 1 - cosine."""
RIDGE = 1.0
MIN_SAMPLES = 96
MAX_SAMPLES = 768
"""The inverse of a matrix this size takes some tens of milliseconds on one core, off the loop."""
SMALL = 128
"""Matrices up to this size are inverted in one go."""
Rows = NDArray[np.int8]
Floats = NDArray[np.float32]


class Guess:
    """A fitted regression."""

    def __init__(self, rows: Rows, scales: Floats, weights: Floats, centre: float) -> None:
        self.packed = rows
        self.floats: Floats | None = None
        """Of the rows, as long as it is lent room for them."""
        self.centre = centre
        # Of exp((cosine - 1) / width) the constant part is in the weights, the width in the scales.
        self._scales = scales / np.float32(KERNEL_WIDTH)
        self._weights = weights * np.float32(exp(-1.0 / KERNEL_WIDTH))

    def of(self, vector: Vector, room: Room) -> float:
        """Return the guessed log(1 + tokens)."""
        floats = self.floats
        if floats is None:
            floats = room.lend(self)
        assert floats is not None
        kernel = floats[: len(self.packed)].dot(vector)
        kernel *= self._scales
        np.exp(kernel, out=kernel)
        return self.centre + float(self._weights.dot(kernel))

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return self.packed.nbytes + self._scales.nbytes + self._weights.nbytes


def fit(
    rows: Rows, scales: Floats, log_tokens: Floats, is_cut: NDArray[np.bool_]
) -> tuple[Guess, Floats]:
    """Return the regression, and what it would say of each row had it not seen that row.

    Row i is `rows[i] * scales[i]`. Cut samples teach nothing: their length is not known.
    """
    known, target = rows[~is_cut], log_tokens[~is_cut]
    floats = pages.zeros(known.shape, np.float32)
    np.multiply(known, scales[~is_cut, None], out=floats)
    centre = float(target.mean())
    factor = pages.zeros((len(known), len(known)), np.float32)
    np.matmul(floats, floats.T, out=factor)
    _kernel(factor)
    np.fill_diagonal(factor, 1.0 + RIDGE)
    _invert_factor(factor, _spare(len(known)))
    weights = factor.T @ (factor @ (target - centre))
    guesses = np.empty(len(rows), np.float32)
    guesses[~is_cut] = target - weights / np.einsum("ij,ij->j", factor, factor)
    cut: Floats = rows[is_cut] * scales[is_cut, None]
    guesses[is_cut] = centre + _kernel(cut @ floats.T) @ weights
    return Guess(known, scales[~is_cut], weights, centre), guesses


def _kernel(cosine: Floats) -> Floats:
    """Return the kernel, in the place of the cosines."""
    cosine -= 1
    cosine /= np.float32(KERNEL_WIDTH)
    return np.exp(cosine, out=cosine)


def _spare(size: int) -> Floats:
    return pages.zeros((size // 2 + 1, size // 2 + 1), np.float32)


def _invert_factor(matrix: Floats, spare: Floats) -> None:
    """Put the inverse of its Cholesky factor in the place of a positive definite matrix.

    By halves, with `spare` for what is in between: in one go it would take four times the matrix.
    The inverse of the matrix itself is the transposed of what comes out times what comes out.
    """
    size = len(matrix)
    if size <= SMALL:
        matrix[:] = np.linalg.inv(np.linalg.cholesky(matrix))
        return
    half = size // 2
    first, second, below = matrix[:half, :half], matrix[half:, half:], matrix[half:, :half]
    rows = len(second)
    _invert_factor(first, spare)
    below[:] = np.matmul(below, first.T, out=spare[:rows, :half])
    second -= np.matmul(below, below.T, out=spare[:rows, :rows])
    _invert_factor(second, spare)
    np.matmul(np.matmul(second, below, out=spare[:rows, :half]), first, out=below)
    np.negative(below, out=below)
    matrix[:half, half:] = 0.0
