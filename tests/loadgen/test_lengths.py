"""Tests of loadgen.lengths."""

from random import Random
from statistics import correlation, fmean, stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.lengths import Quantiles, near

LENGTHS = Quantiles({0.05: 10, 0.5: 100, 0.95: 400, 0.99: 1000})


def test_drawn_lengths_have_the_given_quantiles() -> None:
    rng = Random(2)
    drawn = [LENGTHS.at(rng.gauss(0, 1)) for _ in range(40_000)]

    assert np.percentile(drawn, [5, 50, 95]) == pytest.approx([10, 100, 400], rel=0.05)


@given(st.floats(-20, 20))
def test_lengths_never_leave_the_published_range(z: float) -> None:
    assert 10 <= LENGTHS.at(z) <= 1000


@given(st.lists(st.floats(-6, 6), min_size=2, max_size=2).map(sorted))
def test_a_higher_rank_is_never_shorter(zs: list[float]) -> None:
    assert LENGTHS.at(zs[0]) <= LENGTHS.at(zs[1])


def test_correlated_draws_are_standard_normal_and_correlated() -> None:
    rng = Random(4)
    first = [rng.gauss(0, 1) for _ in range(20_000)]
    second = [near(z, 0.8, rng) for z in first]

    assert fmean(second) == pytest.approx(0, abs=0.03)
    assert stdev(second) == pytest.approx(1, abs=0.03)
    assert correlation(first, second) == pytest.approx(0.8, abs=0.02)


def test_quantiles_that_fall_are_refused() -> None:
    with pytest.raises(ValueError, match="rise with their share"):
        Quantiles({0.1: 50, 0.9: 20})
