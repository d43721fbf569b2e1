"""Floats: bytes unpacked for as long as nobody else needs the room.

What is searched lies in memory as bytes, a quarter of the room; to unpack them takes twice as long
as to compare them. So what was looked at last stays unpacked.
"""

from collections import deque
from typing import Protocol
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from gateway.predictor import pages


class Packed(Protocol):
    """What can be lent room for its floats."""

    floats: NDArray[np.float32] | None
    """Its rows unpacked, and room for more; None: it has none, or no longer."""

    @property
    def packed(self) -> NDArray[np.int8]:
        """Its rows."""


class Floats:
    """Room for some of those that are searched. One owner; all of it is had from the beginning."""

    def __init__(self, count: int, shape: tuple[int, int]) -> None:
        self._lent: deque[tuple[ref[Packed] | None, NDArray[np.float32]]] = deque(
            (None, pages.zeros(shape, np.float32)) for _ in range(count)
        )

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return sum(floats.nbytes for _, floats in self._lent)

    def lend(self, to: Packed) -> NDArray[np.float32]:
        """Unpack one's rows in the room of who has had it longest."""
        holder, floats = self._lent.popleft()
        last = None if holder is None else holder()
        if last is not None:
            last.floats = None
        rows = to.packed
        floats[: len(rows)] = rows
        to.floats = floats
        self._lent.append((ref(to), floats))
        return floats
