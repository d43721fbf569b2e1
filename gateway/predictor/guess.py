"""Guess: kernel ridge regression of the log length on the vectors (pure).

Not a forecast by itself, but a second coordinate: of prompts equally similar, those whose guessed
length is alike say more.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.predictor.query import Vector

KERNEL_WIDTH = 0.35
"""On 1 - cosine."""
RIDGE = 1.0
MIN_SAMPLES = 96
MAX_SAMPLES = 768
"""The inverse of a matrix this size takes some tens of milliseconds on one core, off the loop."""


@dataclass(frozen=True, slots=True)
class Guess:
    """A fitted regression."""

    rows: Vector
    weights: NDArray[np.float32]
    centre: float

    def of(self, vector: Vector) -> float:
        """Return the guessed log(1 + tokens)."""
        return self.centre + float(self.weights @ _kernel(self.rows @ vector))

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return self.rows.nbytes + self.weights.nbytes


def fit(
    rows: Vector, log_tokens: NDArray[np.float32], is_cut: NDArray[np.bool_]
) -> tuple[Guess, NDArray[np.float32]]:
    """Return the regression, and what it would say of each row had it not seen that row.

    Cut samples teach it nothing: their length is not known.
    """
    known, target = rows[~is_cut], log_tokens[~is_cut]
    centre = float(target.mean())
    kernel = _kernel(known @ known.T)
    kernel.flat[:: len(known) + 1] += RIDGE
    inverse = np.linalg.inv(kernel)
    weights = inverse @ (target - centre)
    guesses = np.empty(len(rows), np.float32)
    guesses[~is_cut] = target - weights / np.diagonal(inverse)
    guesses[is_cut] = centre + _kernel(rows[is_cut] @ known.T) @ weights
    return Guess(known, weights, centre), guesses


def _kernel(cosine: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the kernel, in the place of the cosines."""
    cosine -= 1
    cosine /= np.float32(KERNEL_WIDTH)
    return np.exp(cosine, out=cosine)
