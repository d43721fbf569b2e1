"""One factor, learned from ratios."""

from math import log
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.corrections import DEAD_BAND, MAX_FACTOR, Correction, corrected
from tests.builders import a_profile


def after(*ratios: float) -> Correction:
    correction = Correction()
    for ratio in ratios:
        correction.add(ratio)
    return correction


@pytest.mark.parametrize("truth", [0.5, 2.0])
def test_an_error_of_two_is_half_gone_after_sixteen_observations(truth: float) -> None:
    halfway = after(*[truth] * 16)
    later = after(*[truth] * 60)

    assert abs(log(halfway.applied / truth)) < log(2) / 2
    assert later.applied == pytest.approx(truth, rel=0.06)


def test_noise_around_one_is_not_applied() -> None:
    rng = Random(1)
    correction = Correction()

    applied = set()
    for _ in range(2000):
        correction.add(rng.lognormvariate(0, 0.12))
        applied.add(correction.applied)

    assert correction.samples == 2000
    assert applied == {1.0}


def test_a_few_wild_observations_move_little() -> None:
    rng = Random(2)
    ratios = [100.0 if rng.random() < 0.1 else 1.5 for _ in range(400)]

    assert after(*ratios).learned == pytest.approx(1.5, rel=0.15)


def test_a_correction_that_is_undone_is_no_longer_applied() -> None:
    correction = after(*[1.5] * 60)
    assert correction.applied > 1.4

    for _ in range(100):
        correction.add(1.0)

    assert correction.applied == 1.0


@given(st.lists(st.floats(allow_nan=False, min_value=-1, max_value=1e12), max_size=200))
def test_whatever_is_observed_the_factor_is_bounded(ratios: list[float]) -> None:
    correction = after(*ratios)

    assert correction.applied * (1 + 1e-9) >= 1 / MAX_FACTOR
    assert correction.applied <= MAX_FACTOR * (1 + 1e-9)
    assert correction.applied == 1 or abs(log(correction.applied)) > DEAD_BAND / 2


def test_decoding_is_corrected_as_one_and_prefill_apart() -> None:
    profile = a_profile()

    both = corrected(profile, 2.0, 3.0)

    assert both.prefill_s_per_token == pytest.approx(0.002)
    assert both.decode_base_s == pytest.approx(0.3)
    assert both.kv_tokens == profile.kv_tokens
    assert corrected(profile, 1.0, 1.0) is profile
