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
    """Rooms for some of those that are searched, each for so many numbers. One owner."""

    def __init__(self, rooms: int, numbers: int) -> None:
        # Nothing takes memory before it is used.
        self._lent: deque[tuple[ref[Packed] | None, NDArray[np.float32]]] = deque(
            (None, pages.zeros((numbers,), np.float32)) for _ in range(rooms)
        )

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return sum(room.nbytes for _, room in self._lent)

    def lend(self, to: Packed) -> NDArray[np.float32] | None:
        """Unpack one's rows in the room of who has had one longest; there is room for more.

        None: there are no rooms.
        """
        room = self._take_back()
        if room is None:
            return None
        rows = to.packed
        columns = rows.shape[1]
        floats = room[: len(room) // columns * columns].reshape(-1, columns)
        floats[: len(rows)] = rows
        to.floats = floats
        self._lent.append((ref(to), room))
        return floats

    def give_up(self) -> None:
        """Have no rooms any more: the memory is needed elsewhere."""
        while self._lent:
            self._take_back()

    def _take_back(self) -> NDArray[np.float32] | None:
        if not self._lent:
            return None
        holder, room = self._lent.popleft()
        last = None if holder is None else holder()
        if last is not None:
            last.floats = None
        return room
