"""Tests of loadgen.arrivals."""

from itertools import pairwise
from random import Random
from statistics import fmean, stdev

import pytest

from loadgen.arrivals import at_rate, replay, unit_gaps


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0, 4.0])
def test_gaps_have_mean_one_and_the_spread_asked_for(cv: float) -> None:
    gaps = unit_gaps(Random(3), 60_000, cv)

    assert fmean(gaps) == pytest.approx(1, rel=0.06)
    assert stdev(gaps) == pytest.approx(cv, rel=0.06)


def test_without_spread_arrivals_are_a_metronome() -> None:
    assert at_rate(unit_gaps(Random(1), 3, 0), 0.5) == [2, 4, 6]


def test_the_same_seed_gives_the_same_arrivals_stretched_by_the_rate() -> None:
    slow = at_rate(unit_gaps(Random(5), 50), 1)
    fast = at_rate(unit_gaps(Random(5), 50), 4)

    assert fast == pytest.approx([at / 4 for at in slow])


def test_recorded_instants_start_at_zero() -> None:
    assert replay([7.0, 8.5, 12.0]) == [0, 1.5, 5]


def test_recorded_instants_can_be_stretched_to_a_rate() -> None:
    stretched = replay([7.0, 8.0, 11.0], rate_per_s=0.1)

    assert stretched == pytest.approx([0, 5, 20])
    assert [later - earlier for earlier, later in pairwise(stretched)] == pytest.approx([5, 15])


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="coefficient of variation"):
        unit_gaps(Random(1), 3, -1)
    with pytest.raises(ValueError, match="rate must be > 0"):
        at_rate([1.0], 0)
