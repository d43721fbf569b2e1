"""The garbage collector, set for a process that serves for long and must not pause."""

import gc

NEW_OBJECTS = 20_000
"""More than have been dropped, before the youngest are looked through; Python's own is 700."""
GENERATIONS = 20
"""A generation is looked through once for so many times of the one before it."""


def calm() -> None:
    """Leave alone what start-up made, and look through what is new less often.

    Almost everything here is freed by its count of references; what is left is little, and going
    through all that lives for it costs a tenth of the CPU and pauses the event loop.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, GENERATIONS, GENERATIONS)
