"""Arithmetic on probability by bucket."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.lengths import EDGES, PRIOR, bucket_of, log_normal
from gateway.predictor import histograms as h
from gateway.predictor.query import Mass

counts = st.lists(st.integers(0, 9), min_size=48, max_size=48).map(lambda c: np.array(c, float))
FLAT: Mass = np.full(48, 1 / 48)


@given(st.lists(st.floats(0, 40_000), min_size=1))
def test_buckets_are_those_of_the_core(lengths: list[float]) -> None:
    assert h.buckets_of(lengths).tolist() == [bucket_of(length) for length in lengths]


@given(counts, counts, st.floats(0.1, 50))
def test_a_posterior_is_a_distribution(events: Mass, cut: Mass, weight: float) -> None:
    mass = h.posterior(events, cut, FLAT, weight)
    assert mass.sum() == pytest.approx(1)
    assert mass.min() >= 0


@given(counts)
def test_without_cut_samples_it_is_the_plain_mixture(events: Mass) -> None:
    plain = (events + 2 * FLAT) / (events.sum() + 2)
    barely_cut = np.zeros(48)
    barely_cut[0] = 1e-12  # cut before anything else: nobody's place changes
    assert h.posterior(events, None, FLAT, 2) == pytest.approx(plain)
    assert h.posterior(events, barely_cut, FLAT, 2) == pytest.approx(plain, abs=1e-9)


def test_a_cut_sample_counts_as_longer_than_what_there_was_of_it() -> None:
    events, cut = np.zeros(48), np.zeros(48)
    events[[10, 30]] = 5
    cut[20] = 10

    mass = h.posterior(events, cut, FLAT, 0.01)

    assert mass[30] == pytest.approx(0.75, abs=0.01)  # 5 of 20 went at 10; all cut ones at 30
    assert mass[10] == pytest.approx(0.25, abs=0.01)


@given(st.floats(0.05, 20), st.integers(0, 10_000))
def test_no_rounding_makes_a_mass_negative(factor: float, seed: int) -> None:
    mass = np.random.default_rng(seed).dirichlet(np.full(48, 0.3))
    for _ in range(3):
        mass = h.stretched(mass, factor)
        assert min(h.to_lengths(mass).mass) >= 0


@given(st.floats(0.05, 20))
def test_a_stretched_distribution_keeps_its_mass_and_moves_its_median(factor: float) -> None:
    mass = np.array(PRIOR.mass)
    moved = h.stretched(mass, factor)
    assert moved.sum() == pytest.approx(1)
    if 16 < h.median(mass) * factor < 8000:
        assert h.median(moved) == pytest.approx(h.median(mass) * factor, rel=0.1)


def test_a_blurred_length_stays_where_it_was() -> None:
    (mass,) = h.blurred(np.log([300.0]), np.array([0.2]))
    assert mass.sum() == pytest.approx(1)
    assert h.median(mass) == pytest.approx(300, rel=0.05)


def test_several_lengths_are_blurred_by_each_spread() -> None:
    lengths, sds = np.array([1.0, 90.0, 300.0]), np.array([0.1, 0.35])
    blurred = h.blurred(np.log(lengths), sds)
    for mass, sd in zip(blurred, sds, strict=True):
        each = [log_normal(length, sd).mass for length in lengths]
        assert mass == pytest.approx(np.sum(each, axis=0), abs=1e-4)


def test_of_several_answers_the_longest_is_longer() -> None:
    mass = np.array(PRIOR.mass)
    assert h.mean_tokens(h.longest_of(mass, 4)) > 1.5 * h.mean_tokens(mass)
    assert h.longest_of(mass, 1) is mass


def test_tempering_widens_or_narrows() -> None:
    mass = np.array(PRIOR.mass)
    spread = {e: h.to_lengths(h.tempered(mass, e)) for e in (0.5, 1.0, 1.4)}
    widths = [d.quantile(0.9) - d.quantile(0.1) for d in spread.values()]
    assert widths == sorted(widths, reverse=True)


@given(st.integers(1, 20_000), st.integers(0, 10_000))
def test_crps_is_the_integral_it_claims_to_be(tokens: int, seed: int) -> None:
    mass = np.random.default_rng(seed).dirichlet(np.full(48, 0.3))
    grid = np.linspace(0, 20_000, 80_001)
    below = np.interp(grid, EDGES, np.concatenate(([0.0], np.cumsum(mass))))
    integral = np.trapezoid((below - (grid >= tokens)) ** 2, grid)
    assert h.crps(mass, tokens) == pytest.approx(integral, rel=0.01, abs=1.0)


def test_forecasts_are_scored_together_as_they_are_one_by_one() -> None:
    masses = np.random.default_rng(3).dirichlet(np.ones(48), (2, 3))
    for tokens in (1.0, 300.0, 20_000.0):
        one_by_one = [[h.crps(mass, tokens) for mass in row] for row in masses]
        assert h.crps_of_each(masses, tokens) == pytest.approx(np.array(one_by_one))


@given(st.floats(0, 40_000), st.integers(0, 10_000))
def test_the_score_is_the_same_by_what_was_reached(tokens: float, seed: int) -> None:
    masses = np.random.default_rng(seed).dirichlet(np.full(48, 0.3), 2)
    reached = np.concatenate((np.zeros((2, 1)), np.cumsum(masses, axis=1)), axis=1)
    scores = h.crps_of_each(masses, tokens)
    assert h.crps_of_reached(reached, tokens) == pytest.approx(scores, abs=1e-6)
