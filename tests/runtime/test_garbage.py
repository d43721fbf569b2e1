"""The collector is calmed, and still collects."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from gateway.runtime.garbage import NEW_OBJECTS, calm


class Node:
    """Something that holds itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    gc.unfreeze()
    yield
    gc.set_threshold(*before)


def test_what_was_there_is_left_alone() -> None:
    calm()

    assert gc.get_freeze_count() > 1000


def test_cycles_are_still_freed_after_so_many_objects() -> None:
    calm()
    node = weakref.ref(Node())
    assert node() is not None

    kept = [[number] for number in range(NEW_OBJECTS + 1)]

    assert len(kept) > NEW_OBJECTS
    assert node() is None
