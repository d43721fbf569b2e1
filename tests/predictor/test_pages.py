"""Arrays in pages of their own."""

from pathlib import Path

import numpy as np

from gateway.predictor import pages

MEGABYTES = 32


def resident_mb() -> float:
    """Return this process' anonymous resident memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def test_they_are_zeros_that_can_be_written() -> None:
    found = pages.zeros((3, 5), np.int8)
    assert found.shape == (3, 5)
    assert found.dtype == np.int8
    assert not found.any()
    found[1] = 7
    assert found.sum() == 35
    assert pages.zeros((0, 5), np.float32).shape == (0, 5)


def test_untouched_they_cost_nothing_and_dropped_they_go_back() -> None:
    before = resident_mb()
    large = pages.zeros((MEGABYTES, 2**20), np.int8)
    assert resident_mb() - before < MEGABYTES / 4
    large[:] = 1
    assert resident_mb() - before > MEGABYTES / 2
    del large
    assert resident_mb() - before < MEGABYTES / 4


def test_what_malloc_kept_goes_back() -> None:
    pieces = [bytearray(2000) for _ in range(10_000)]
    last = bytearray(2000)  # keeps what is below it from being given back anyway
    del pieces
    before = resident_mb()
    pages.give_back()
    assert resident_mb() < before - 5
    assert len(last) == 2000
