"""Scores of one forecast."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.lengths import EDGES, PRIOR
from gateway.predictor import histograms as h
from gateway.predictor.outcome import PINBALL, Outcome
from gateway.predictor.query import Ended, Level, Mass

MASS: Mass = np.array(PRIOR.mass)


def an_outcome(
    tokens: float,
    *,
    mass: Mass = MASS,
    similar: Mass | None = None,
    ended: Ended = Ended.FINISHED,
) -> Outcome:
    """Return one of a call that some stage knows nothing of."""
    return Outcome(
        mass=mass,
        stage_mass=MASS,
        similar_mass=similar,
        level=Level.SIMILAR,
        tokens=tokens,
        ended=ended,
    )


def test_the_place_of_honest_forecasts_is_uniform() -> None:
    rng = np.random.default_rng(1)
    lengths = np.array(EDGES[1:])[rng.choice(48, 4000, p=MASS / MASS.sum())]
    places = [an_outcome(tokens).place(rng.random()) for tokens in lengths]
    assert np.histogram(places, 10, (0, 1))[0] / 4000 == pytest.approx(0.1, abs=0.02)


def test_of_a_cut_answer_it_lies_above_the_cut() -> None:
    cut = an_outcome(300, ended=Ended.CAPPED)
    assert cut.place(0.0) > 0.4
    assert cut.place(0.999) > 0.99
    assert an_outcome(300, ended=Ended.CAPPED, similar=MASS).crps_tokens is None


@given(st.floats(0, 40_000), st.integers(0, 10_000))
def test_each_quantile_has_its_loss(tokens: float, seed: int) -> None:
    mass = np.random.default_rng(seed).dirichlet(np.full(48, 0.3))
    shares = np.array(PINBALL) / 100
    overs = tokens - np.interp(shares, np.cumsum(mass), EDGES[1:])
    losses = np.maximum(overs * shares, overs * (shares - 1))
    assert an_outcome(tokens, mass=mass).pinball_tokens == pytest.approx(losses, abs=1e-6)


@pytest.mark.parametrize("tokens", [0.0, 300.0, 20_000.0])
def test_levels_four_and_five_are_scored_against_the_stage(tokens: float) -> None:
    similar, answered = np.random.default_rng(2).dirichlet(np.ones(48), 2)
    expected = h.crps(similar, tokens), h.crps(MASS, tokens)

    scores = (
        an_outcome(tokens, mass=similar, similar=similar),
        an_outcome(tokens, mass=answered, similar=similar),
    )

    for score in scores:
        assert score.crps_tokens == pytest.approx(expected)
    assert [score.mean_tokens for score in scores] == pytest.approx(
        [h.mean_tokens(similar), h.mean_tokens(answered)]
    )
    assert an_outcome(tokens).crps_tokens is None
