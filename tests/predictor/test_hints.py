"""How far a client's own hint is believed."""

import numpy as np
import pytest

from gateway.core.lengths import PRIOR
from gateway.predictor.hints import HintTrust
from gateway.predictor.histograms import mean_tokens, median

MASS = np.array(PRIOR.mass)


def test_at_first_a_hint_counts_half() -> None:
    trust = HintTrust()
    assert trust.share == 0.5
    assert trust.mixed(MASS, 2000).sum() == pytest.approx(1)
    assert mean_tokens(trust.mixed(MASS, 2000)) > mean_tokens(MASS)


def test_good_hints_are_believed() -> None:
    trust = HintTrust()
    for tokens in np.random.default_rng(1).integers(20, 3000, 60):
        trust.learn(MASS, float(tokens), float(tokens) * 1.05)
    assert trust.share > 0.9
    assert median(trust.mixed(MASS, 1500)) == pytest.approx(1575, rel=0.15)


def test_hints_that_are_off_by_a_factor_are_corrected() -> None:
    trust = HintTrust()
    for tokens in np.random.default_rng(1).integers(20, 1500, 80):
        trust.learn(MASS, float(tokens), float(tokens) * 4)
    assert median(trust.mixed(MASS, 100)) == pytest.approx(400, rel=0.2)


def test_random_hints_are_not() -> None:
    trust, rng = HintTrust(), np.random.default_rng(1)
    for _ in range(80):
        trust.learn(MASS, float(rng.integers(1, 5000)), float(rng.lognormal(5.5, 1.2)) + 1)
    assert trust.share < 0.6


@pytest.mark.parametrize("hint", [1, 10**9])
def test_absurd_hints_do_no_harm(hint: int) -> None:
    trust = HintTrust()
    for _ in range(40):
        trust.learn(MASS, hint, 300)
    mixed = trust.mixed(MASS, hint)
    assert mixed.sum() == pytest.approx(1)
    assert mixed.min() >= 0
