"""Room for rows as floats, lent in turn."""

import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.predictor.floats import Floats


class Rows:
    """Some rows of bytes."""

    def __init__(self, count: int) -> None:
        self.packed = np.arange(count * 3, dtype=np.int8).reshape(count, 3)
        self.floats: NDArray[np.float32] | None = None


def test_the_rows_are_there_as_floats() -> None:
    rows, room = Rows(4), Floats(1, 26)

    floats = room.lend(rows)

    assert floats is not None
    assert rows.floats is floats
    assert floats[:4] == pytest.approx(rows.packed)
    assert floats.shape == (8, 3)
    assert room.nbytes == 26 * 4


def test_who_has_had_room_longest_gives_it_up() -> None:
    room = Floats(2, 26)
    first, second, third = Rows(1), Rows(2), Rows(3)
    for rows in (first, second, third):
        room.lend(rows)
    assert first.floats is None
    assert second.floats is not None
    assert third.floats is not None
    assert second.floats is not third.floats


def test_who_is_gone_is_not_kept() -> None:
    room = Floats(1, 26)
    room.lend(Rows(1))
    floats = room.lend(Rows(2))
    assert floats is not None
    assert floats.shape == (8, 3)


def test_without_rooms_nobody_has_floats() -> None:
    rows, room = Rows(1), Floats(2, 26)
    room.lend(rows)

    room.give_up()

    assert rows.floats is None
    assert room.lend(rows) is None
    assert room.nbytes == 0
